"""An iteration of speculative decoding: draft, score, verify, commit.

Source: Leviathan et al., ICML 2023, algorithm 1.
Shapes: B rows, G drafted nodes, N = G + 1, D the tree's depth, K = D + 1, V vocabulary,
C decisions, L uniforms a decision.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import (
  Sampling,
  acceptance_mass,
  certain_log_prob,
)
from specdec_t5x.core.rules.token import drafted_probs
from specdec_t5x.core.types import (
  Cache,
  EndTokens,
  ExtendFn,
  Proposal,
  Rule,
  Verdict,
  check_uniforms,
  is_end,
)
from specdec_t5x.decoding import widths
from specdec_t5x.decoding.drafter import Context, Drafter, Stops
from specdec_t5x.decoding.state import DecodeState, StepInfo


@dataclasses.dataclass(frozen=True)
class Speculation:
  """How to decode: everything that is fixed when the program is compiled.

  Attributes:
    drafter: proposes tokens.
    rule: accepts drafted tokens; the result of `core.rules.rule_at`.
    sampling: the adjustment of the target's distribution for the rule; with greedy
      lenience the drafter's adjustment is another.
    context: the networks, the policy and the settings of the decode.
  """

  drafter: Drafter
  rule: Rule
  sampling: Sampling
  context: Context


@flax.struct.dataclass
class Iteration:
  """The result of an iteration, for observers.

  Attributes:
    proposal: the draft, cut to the tokens that can count.
    logits: the target's logits after each node.
    target_probs: p after each node; the logits if the rule reads no distributions.
    verdict: the accepted path and the next token.
    uniforms: the draws of all decisions: the drafter's, then the rule's.
    info: the counts; None until the iteration is committed.
  """

  proposal: Proposal
  logits: Float[Array, "B N V"]
  target_probs: Float[Array, "B N V"]
  verdict: Verdict
  uniforms: Float[Array, "B C L"]
  info: StepInfo | None = None


def step(
  spec: Speculation,
  state: DecodeState,
  uniforms: Float[Array, "B C L"] | None = None,
) -> tuple[DecodeState, Iteration]:
  """Runs one iteration: draft, score, verify, commit.

  Live rows gain the accepted tokens and a recovered or bonus token. A call of the
  target scores the last known token and the whole draft.

  Args:
    spec: how to decode.
    state: the decode's state.
    uniforms: independent draws from U[0, 1), L for each of C = `decisions`; by default
      the draws of the state's keys.

  Returns:
    The new state, and the result of the iteration.
  """
  if uniforms is None:
    uniforms = draws(spec, state)
  state, proposal = draft(spec, state, uniforms)
  state, logits, features = score(spec, state, proposal)
  iteration = verify(spec, proposal, logits, uniforms)
  return commit(spec, state, iteration, features)


def decisions(drafter: Drafter) -> int:
  """Returns the number of decisions of an iteration: draws, tests, the next token."""
  return drafter.decisions + drafter.tree.size + 1


def draws(spec: Speculation, state: DecodeState) -> Float[Array, "B C L"]:
  """Returns the uniforms of an iteration: the drafter's, then the rule's.

  Coupled draws belong to places of the output: the drafter's i-th and the rule's i-th
  draw are the draw of the i-th place to come.
  """
  if not spec.sampling.coupled:
    return state.uniforms(decisions(spec.drafter))
  drafted, judged = spec.drafter.decisions, spec.drafter.tree.size + 1
  uniforms = state.uniforms_of_places(max(drafted, judged))
  return jnp.concatenate([uniforms[:, :drafted], uniforms[:, :judged]], axis=1)


def draft(
  spec: Speculation, state: DecodeState, uniforms: Float[Array, "B C L"]
) -> tuple[DecodeState, Proposal]:
  """Returns the state after drafting, and the draft without tokens that can't count."""
  check_uniforms(uniforms, decisions(spec.drafter))
  drafter_draws = uniforms[:, : spec.drafter.decisions]
  proposal, drafter_state = spec.drafter.propose(spec.context, state, drafter_draws)
  lengths = spec.context.draft_lengths(state, spec.drafter.lengths)
  proposal = limit(proposal, lengths, spec.context.eos_id)
  return state.replace(drafter_state=drafter_state), proposal


def limit(proposal: Proposal, lengths: Int[Array, "B"], eos_id: EndTokens) -> Proposal:
  """Returns the proposal with at most `lengths` tokens, and no token after an end."""
  tree = proposal.tree
  depths = jnp.broadcast_to(tree.depths, (lengths.size, tree.size + 1))[:, 1:]
  may_count = proposal.is_valid & (depths <= lengths[:, None])
  # A node counts if it and its ancestors may count, and no ancestor is an end.
  ends = jnp.pad(is_end(proposal.tokens, eos_id), ((0, 0), (1, 0)))
  drops = jnp.pad(~may_count, ((0, 0), (1, 0)))
  above = tree.sees & ~jnp.eye(tree.size + 1, dtype=bool)
  dropped = (tree.sees & drops[:, None]).any(-1) | (above & ends[:, None]).any(-1)
  return proposal.replace(is_valid=~dropped[:, 1:])


def score(spec: Speculation, state: DecodeState, proposal: Proposal):
  """Scores the last known token and the draft in one call of the target.

  Returns:
    The state with the target's new cache, logits [B, N, V] and features [B, N, D].
  """
  # The last known token heads the block: the target has not read this token.
  cache = state.target_cache.at(state.lengths - 1)
  target, policy = spec.context.target, spec.context.policy
  has_widths = spec.drafter.stops is Stops.BY_ITSELF or policy.may_rest
  if proposal.tree.is_chain and has_widths and not target.is_fixed:
    # A policy that may rest does so when no row drafts: a width of 1 is not needed.
    least = 2 if policy.may_rest else 1
    logits, features, cache = widths.score(
      target.extend, cache, state.last_tokens(), proposal, least
    )
  else:
    logits, features, cache = score_tree(
      target.extend, cache, state.last_tokens(), proposal
    )
  return state.replace(target_cache=cache), logits, features


def score_tree(
  extend: ExtendFn, cache: Cache, last: Int[Array, "B"], proposal: Proposal
):
  """Scores the tree in one call: `last`, its root, and the drafted tokens.

  Returns:
    Logits [B, N, V], features [B, N, D] and the cache.
  """
  block = jnp.concatenate([last[:, None], proposal.tokens], axis=1)
  tree = proposal.tree
  if tree.is_chain:
    return extend(cache, block)
  sees = jnp.broadcast_to(tree.sees, (*block.shape, block.shape[1]))
  return extend(cache, block, cache.index[:, None] + tree.depths, sees)


def verify(
  spec: Speculation,
  proposal: Proposal,
  logits: Float[Array, "B N V"],
  uniforms: Float[Array, "B C L"],
) -> Iteration:
  """Decides by the rule about the accepted tokens and the token after them."""
  target_probs = logits
  if spec.rule.reads_probs:
    target_probs = spec.context.adjust(logits, spec.sampling)
  rule_draws = uniforms[:, spec.drafter.decisions :]
  verdict = spec.rule.verify(target_probs, proposal, rule_draws)
  return Iteration(proposal, logits, target_probs, verdict, uniforms)


def commit(
  spec: Speculation,
  state: DecodeState,
  iteration: Iteration,
  features: Float[Array, "B N D"],
) -> tuple[DecodeState, Iteration]:
  """Appends the accepted tokens and a recovered or bonus token to live rows.

  Also updates the caches, the drafter and the policy.

  Returns:
    The new state, and the iteration with its counts.
  """
  context, verdict = spec.context, iteration.verdict
  tokens, emitted, ends = _emitted_tokens(spec, state, iteration)
  info = _counts(spec, state, iteration, tokens, emitted)
  is_full = emitted >= state.remaining(context.max_length)
  target_cache = _keep_path(
    state.target_cache, state.lengths, iteration.proposal, verdict
  )
  state = state.replace(
    # Rows that have ended write zeros over zeros.
    sequences=write_rows(state.sequences, tokens, state.lengths),
    lengths=state.lengths + emitted,
    ended=state.ended | ends | is_full,
    scores=state.scores + info.log_prob,
    iteration=state.iteration + 1,
    target_cache=target_cache,
    drafter_state=spec.drafter.commit(context, state.drafter_state, verdict, features),
    policy_state=context.policy.update(state.policy_state, info),
  )
  return state, iteration.replace(info=info)


def _keep_path(cache, lengths, proposal, verdict) -> Cache:
  """Returns the cache with the accepted path's entries where a chain's would be."""
  if proposal.tree.is_chain:
    return cache
  path = proposal.tree.path(verdict.last)[:, 1:]
  return cache.gathered(lengths[:, None] - 1 + path, lengths)


def is_cut(proposal, verdict) -> Bool[Array, "B"]:
  """Returns the rows in which a drafted token was rejected."""
  parents = jnp.asarray(proposal.tree.parents)
  parents = jnp.broadcast_to(parents, proposal.tokens.shape)
  return ((parents == verdict.last[:, None]) & proposal.is_valid).any(axis=1)


def _emitted_tokens(spec, state, iteration):
  """Returns new tokens [B, D + 1], numbers of new tokens [B], and ended rows [B]."""
  proposal, verdict = iteration.proposal, iteration.verdict
  accepted = proposal.tree.depth_of(verdict.last)
  path = proposal.tree.path(verdict.last)
  places = jnp.arange(path.shape[1])
  drafted = jnp.take_along_axis(proposal.tokens, path[:, 1:] - 1, axis=1)
  tokens = jnp.where(
    places < accepted[:, None],
    jnp.pad(drafted, ((0, 0), (0, 1))),
    verdict.next_token[:, None],
  ).astype(jnp.int32)
  # No recovered or bonus token follows an accepted end of sequence.
  ends = is_end(tokens, spec.context.eos_id) & (places <= accepted[:, None])
  emitted = jnp.where(ends.any(axis=1), ends.argmax(axis=1) + 1, accepted + 1)
  emitted = emitted * ~state.ended
  tokens = jnp.where(places < emitted[:, None], tokens, 0)
  return tokens, emitted, ends.any(axis=1)


def _counts(spec, state, iteration, tokens, emitted) -> StepInfo:
  """Returns the counts of an iteration, given the new tokens of the rows."""
  proposal, verdict = iteration.proposal, iteration.verdict
  target_probs, live = iteration.target_probs, ~state.ended
  accepted = proposal.tree.depth_of(verdict.last)
  path = proposal.tree.path(verdict.last)
  rows = jnp.arange(live.size)[:, None]
  if spec.rule.reads_probs:
    log_probs = jnp.log(target_probs[rows, path, tokens])
  else:
    log_probs = certain_log_prob(target_probs)[rows, path]
  is_emitted = jnp.arange(path.shape[1]) < emitted[:, None]
  tried = (accepted + is_cut(proposal, verdict)) * live
  return StepInfo(
    target_calls=live.astype(jnp.int32),
    drafted=proposal.num_valid * live,
    accepted=accepted * live,
    acceptance_positions=tried,
    acceptance_mass=_mass(spec, target_probs, proposal, accepted * live, tried),
    emitted=emitted,
    log_prob=jnp.where(is_emitted, log_probs, 0.0).sum(axis=1),
  )


def _mass(spec, target_probs, proposal, accepted, tried) -> Float[Array, "B"]:
  """Returns the sum of min(p, q) over the tried tokens of a chain; 0 for trees.

  The sum is NaN if any draft distribution contained NaN.
  """
  # The certain token of a distribution with NaN is -1.
  no_probs = proposal.tokens < 0
  if not spec.rule.reads_probs:
    mass = accepted.astype(jnp.float32)
  elif proposal.tree.is_chain:
    mass = _mass_of_chain(target_probs, proposal, tried)
  else:
    mass, no_probs = 0.0, no_probs | jnp.isnan(proposal.drafted_probs())
  is_lost = (no_probs & proposal.is_valid).any(axis=1) & (tried > 0)
  return jnp.where(is_lost, jnp.nan, mass)


def _mass_of_chain(target_probs, proposal, tried):
  if proposal.draft_probs is None:
    beta = drafted_probs(target_probs, proposal)
  else:
    beta = acceptance_mass(target_probs[:, :-1], proposal.draft_probs)
  is_tried = jnp.arange(proposal.tree.size) < tried[:, None]
  return jnp.where(is_tried, beta, 0.0).sum(axis=1)


def write_rows(rows: Array, new: Array, at: Int[Array, "B"]) -> Array:
  """Returns rows with new entries at one place per row."""

  def write_row(row, new, at):
    return jax.lax.dynamic_update_slice_in_dim(row, new, at, 0)

  return jax.vmap(write_row)(rows, new, at)
