"""One iteration of speculative decoding: draft, score, verify, commit.

Source: Leviathan et al., ICML 2023, algorithm 1.
Shapes: B rows, G gamma, K = G + 1, V vocabulary, S sequence buffer.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import Sampling, acceptance_mass, adjusted_probs
from specdec_t5x.core.types import (
  Candidates,
  Drafter,
  ExtendFn,
  Proposal,
  Rule,
  Verdict,
)
from specdec_t5x.decoding import candidates, widths
from specdec_t5x.decoding.state import DecodeState, StepInfo


@dataclasses.dataclass(frozen=True)
class Speculation:
  """How to decode: everything that is fixed when the program is compiled.

  Attributes:
    extend: the target model.
    drafter: proposes gamma tokens an iteration.
    rule: decides which of them stand.
    sampling: the adjustment of the target's law that the rule works on (the drafter
      has the same, but for greedy lenience; see `core.rules.rule_for`).
    gamma: length of a draft, in tokens.
    max_length: room for the output, in tokens.
    eos_id: the token that ends a sequence.
    num_candidates: drafts an iteration; more than one only for a rule that takes them.
    widths: the block widths that the target may be called with, where drafts differ in
      length (`decoding.widths`); none is always gamma + 1.
  """

  extend: ExtendFn
  drafter: Drafter
  rule: Rule
  sampling: Sampling
  gamma: int
  max_length: int
  eos_id: int
  num_candidates: int = 1
  widths: tuple[int, ...] = ()


def step(spec: Speculation, state: DecodeState) -> tuple[DecodeState, StepInfo]:
  """Extends every live row by one to gamma + 1 tokens.

  One call of the target scores the last known token and the whole draft.
  """
  drafted = spec.gamma * spec.num_candidates
  uniforms = state.uniforms(2 * drafted + 1)
  proposal, drafter_state = spec.drafter.propose(
    state.drafter_state, state.sequences, state.lengths, uniforms[:, :drafted]
  )
  proposal = limit(proposal, state.room(spec.max_length), spec.eos_id)
  # The last known token was never fed to the target: it heads the block.
  cache, last = state.target_cache.at(state.lengths - 1), state.last_tokens()
  logits, features, cache = _score(spec, cache, last, proposal)
  target_probs = adjusted_probs(logits, spec.sampling)
  verdict = spec.rule.verify(target_probs, proposal, uniforms[:, drafted:])
  num_drafted = proposal.num_valid.reshape(last.size, -1).sum(axis=1)
  if spec.rule.takes_candidates:
    proposal, target_probs, features, cache = candidates.choose(
      proposal, target_probs, features, cache, state.lengths, verdict.candidate
    )
  state = state.replace(
    target_cache=cache,
    drafter_state=spec.drafter.commit(drafter_state, verdict, features),
  )
  state, info = commit(spec, state, proposal, target_probs, verdict)
  return state, info.replace(drafted=num_drafted * info.target_calls)


def limit(
  proposal: Proposal | Candidates, room: Int[Array, "B"], eos_id: int
) -> Proposal | Candidates:
  """Returns the proposal cut to what can count.

  Nothing follows an end of sequence, and a row with room for n tokens takes at most
  n - 1 drafted ones, for the target always adds one.
  """
  is_eos = proposal.tokens == eos_id
  gamma = proposal.tokens.shape[-1]
  through_eos = jnp.where(is_eos.any(axis=-1), is_eos.argmax(axis=-1) + 1, gamma)
  room = room.reshape(-1, *[1] * (through_eos.ndim - 1))
  num_valid = jnp.minimum(proposal.num_valid, jnp.minimum(through_eos, room - 1))
  return proposal.replace(num_valid=jnp.maximum(num_valid, 0))


def _score(spec, cache, last, proposal):
  if spec.rule.takes_candidates:
    return candidates.score(spec.extend, cache, last, proposal)
  if spec.widths:
    return widths.score(spec.widths, spec.extend, cache, last, proposal)
  return score_chain(spec.extend, cache, last, proposal)


def score_chain(extend: ExtendFn, cache, last: Int[Array, "B"], proposal: Proposal):
  """Scores the last known token and the draft in one call of the target.

  Returns:
    Logits [B, K, V], features [B, K, D] and the cache.
  """
  return extend(cache, jnp.concatenate([last[:, None], proposal.tokens], axis=1))


def commit(
  spec: Speculation,
  state: DecodeState,
  proposal: Proposal,
  target_probs: Float[Array, "B K V"],
  verdict: Verdict,
) -> tuple[DecodeState, StepInfo]:
  """Appends the accepted tokens and the one after them to each live row."""
  live = ~state.ended
  accepted = verdict.num_accepted
  positions = jnp.arange(spec.gamma + 1)
  padded = jnp.pad(proposal.tokens, ((0, 0), (0, 1)))
  tokens = jnp.where(
    positions < accepted[:, None], padded, verdict.next_token[:, None]
  ).astype(jnp.int32)
  # An accepted end of sequence takes no recovered or bonus token after it.
  ends = (tokens == spec.eos_id) & (positions <= accepted[:, None])
  emitted = jnp.where(ends.any(axis=1), ends.argmax(axis=1) + 1, accepted + 1) * live
  is_emitted = positions < emitted[:, None]
  tokens = jnp.where(is_emitted, tokens, 0)

  lengths = state.lengths + emitted
  probs = jnp.take_along_axis(target_probs, tokens[..., None], axis=-1)[..., 0]
  log_prob = jnp.where(is_emitted, jnp.log(probs), 0.0).sum(axis=1)
  is_full = emitted >= state.room(spec.max_length)
  new_state = state.replace(
    sequences=_append(state.sequences, tokens, state.lengths),
    lengths=lengths,
    ended=state.ended | ends.any(axis=1) | is_full,
    scores=state.scores + log_prob,
    iteration=state.iteration + 1,
  )
  tried = jnp.minimum(accepted + 1, proposal.num_valid) * live
  beta = acceptance_mass(target_probs[:, :-1], proposal.draft_probs)
  info = StepInfo(
    target_calls=live.astype(jnp.int32),
    drafted=proposal.num_valid * live,
    accepted=accepted * live,
    acceptance_positions=tried,
    acceptance_mass=jnp.where(positions[:-1] < tried[:, None], beta, 0.0).sum(axis=1),
    emitted=emitted,
    log_prob=log_prob,
  )
  return new_state, info


def _append(sequences, tokens, lengths):
  # Rows that have ended write zeros over zeros.
  write_row = jax.vmap(
    lambda row, new, start: jax.lax.dynamic_update_slice(row, new, (start,))
  )
  return write_row(sequences, tokens, lengths)
