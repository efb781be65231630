"""One iteration of speculative decoding: draft, score, verify, commit.

Source: Leviathan et al., ICML 2023, algorithm 1.
Shapes: B rows, G gamma, K = G + 1, V vocabulary, S sequence buffer.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import Sampling, acceptance_mass, adjusted_probs
from specdec_t5x.core.types import Drafter, ExtendFn, Proposal, Rule, Verdict
from specdec_t5x.decoding.state import DecodeState, StepInfo


@dataclasses.dataclass(frozen=True)
class Speculation:
  """How to decode: everything that is fixed when the program is compiled.

  Attributes:
    extend: the target model.
    drafter: proposes gamma tokens an iteration.
    rule: decides which of them stand.
    sampling: the adjustment of the target's law (the drafter has the same).
    gamma: tokens drafted an iteration.
    max_length: room for the output, in tokens.
    eos_id: the token that ends a sequence.
  """

  extend: ExtendFn
  drafter: Drafter
  rule: Rule
  sampling: Sampling
  gamma: int
  max_length: int
  eos_id: int


def step(spec: Speculation, state: DecodeState) -> tuple[DecodeState, StepInfo]:
  """Extends every live row by one to gamma + 1 tokens.

  One call of the target scores the last known token and the whole draft.
  """
  uniforms = state.uniforms(2 * spec.gamma + 1)
  proposal, drafter_state = spec.drafter.propose(
    state.drafter_state, state.sequences, state.lengths, uniforms[:, : spec.gamma]
  )
  proposal = limit(proposal, spec.max_length + 1 - state.lengths, spec.eos_id)
  block = jnp.concatenate([state.last_tokens()[:, None], proposal.tokens], axis=1)
  logits, features, target_cache = spec.extend(
    state.target_cache.at(state.lengths - 1), block
  )
  target_probs = adjusted_probs(logits, spec.sampling)
  verdict = spec.rule.verify(target_probs, proposal, uniforms[:, spec.gamma :])
  state = state.replace(
    target_cache=target_cache,
    drafter_state=spec.drafter.commit(drafter_state, verdict, features),
  )
  return commit(spec, state, proposal, target_probs, verdict)


def limit(proposal: Proposal, room: Int[Array, "B"], eos_id: int) -> Proposal:
  """Returns the proposal cut to what can count.

  Nothing follows an end of sequence, and a row with room for n tokens takes at most
  n - 1 drafted ones, for the target always adds one.
  """
  is_eos = proposal.tokens == eos_id
  gamma = proposal.tokens.shape[1]
  through_eos = jnp.where(is_eos.any(axis=1), is_eos.argmax(axis=1) + 1, gamma)
  num_valid = jnp.minimum(proposal.num_valid, jnp.minimum(through_eos, room - 1))
  return proposal.replace(num_valid=jnp.maximum(num_valid, 0))


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
  new_state = state.replace(
    sequences=_append(state.sequences, tokens, state.lengths),
    lengths=lengths,
    ended=state.ended | ends.any(axis=1) | (lengths > spec.max_length),
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
