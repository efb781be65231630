"""One iteration of speculative decoding: draft, score, verify, commit.

Source: Leviathan et al., ICML 2023, algorithm 1.
Shapes: B rows, G drafted nodes, N = G + 1, D the tree's depth, K = D + 1, V vocabulary,
C decisions, L uniforms a decision.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core import chain
from specdec_t5x.core.checks import check_uniforms
from specdec_t5x.core.distributions import (
  Sampling,
  acceptance_mass,
  certain_log_prob,
)
from specdec_t5x.core.ends import EndTokens, is_end
from specdec_t5x.core.types import Cache, ExtendFn, Proposal, Rule, Verdict
from specdec_t5x.decoding import widths
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.drafter import Drafter, Stops
from specdec_t5x.decoding.state import DecodeState, StepInfo


@dataclasses.dataclass(frozen=True)
class Speculation:
  """How to decode: everything that is fixed when the program is compiled.

  Attributes:
    drafter: proposes tokens.
    rule: decides which of them stand; as `core.greedy.rule_at` gives it.
    sampling: the adjustment of the target's distribution that the rule works on (the
      drafter has the same, but for greedy lenience).
    context: the networks and the policy, and what the drafter is given.
  """

  drafter: Drafter
  rule: Rule
  sampling: Sampling
  context: Context


@flax.struct.dataclass
class Iteration:
  """What happened in one iteration; what observers are given.

  Attributes:
    proposal: the draft, cut to what can count.
    logits: the target's after each node, as it gave them.
    target_probs: p after each node; the logits where the rule reads no distributions.
    verdict: what became of the proposal.
    uniforms: of all decisions: the draft's, then the rule's.
    info: what is counted of it; None until it is committed.
  """

  proposal: Proposal
  logits: Float[Array, "B N V"]
  target_probs: Float[Array, "B N V"]
  verdict: Verdict
  uniforms: Float[Array, "B C L"]
  info: StepInfo | None = None


def step(spec: Speculation, state: DecodeState) -> tuple[DecodeState, StepInfo]:
  """Extends every live row by one token, and by those that were drafted and accepted.

  One call of the target scores the last known token and the whole draft.
  """
  state, iteration = iterate(spec, state, draws(spec, state))
  return state, iteration.info


def decisions(drafter: Drafter) -> int:
  """Returns how many decisions an iteration takes: draws, tests, and the next token."""
  return drafter.decisions + drafter.tree.size + 1


def draws(spec: Speculation, state: DecodeState) -> Float[Array, "B C L"]:
  """Returns the uniforms of an iteration: the draft's, then the rule's.

  Of coupled draws the i-th of either is that of the i-th place to come.
  """
  if not spec.sampling.coupled:
    return state.uniforms(decisions(spec.drafter))
  counts = spec.drafter.decisions, spec.drafter.tree.size + 1
  uniforms = state.uniforms_of_places(max(counts))
  return jnp.concatenate([uniforms[:, :count] for count in counts], axis=1)


def iterate(
  spec: Speculation, state: DecodeState, uniforms: Float[Array, "B C L"]
) -> tuple[DecodeState, Iteration]:
  """Does what `step` does, and tells all of it.

  Args:
    spec: how to decode.
    state: where it stands.
    uniforms: independent draws from U[0, 1), L for each of C = `decisions`.
  """
  state, proposal = draft(spec, state, uniforms)
  state, logits, features = score(spec, state, proposal)
  iteration = verify(spec, proposal, logits, uniforms)
  return commit(spec, state, iteration, features)


def draft(
  spec: Speculation, state: DecodeState, uniforms: Float[Array, "B C L"]
) -> tuple[DecodeState, Proposal]:
  """Returns the state with the drafter's new one, and a draft cut to what can count."""
  check_uniforms(uniforms, decisions(spec.drafter))
  draws = uniforms[:, : spec.drafter.decisions]
  proposal, drafter_state = spec.drafter.propose(spec.context, state, draws)
  most = spec.context.most(state, spec.drafter.lengths)
  proposal = limit(proposal, most, spec.context.eos_id)
  return state.replace(drafter_state=drafter_state), proposal


def limit(proposal: Proposal, most: Int[Array, "B"], eos_id: EndTokens) -> Proposal:
  """Returns the proposal cut to `most` tokens a path; nothing follows an end."""
  tree = proposal.tree
  depths = jnp.broadcast_to(tree.depths, (most.size, tree.size + 1))[:, 1:]
  may_count = proposal.is_valid & (depths <= most[:, None])
  # A node counts where it may, and so may its ancestors, none of which is an end.
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
  # The last known token was never fed to the target: it heads the block.
  cache = state.target_cache.at(state.lengths - 1)
  target, policy = spec.context.target, spec.context.policy
  scored = target.extend, cache, state.last_tokens(), proposal
  may_vary = proposal.tree.is_chain and not target.is_fixed
  if may_vary and (spec.drafter.stops is Stops.BY_ITSELF or policy.may_rest):
    # Rows that could all do without a draft would rest instead.
    found = widths.score(*scored, least=2 if policy.may_rest else 1)
  else:
    found = score_tree(*scored)
  logits, features, cache = found
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
  """Returns what the rule makes of a draft that was scored."""
  target_probs = logits
  if spec.rule.reads_probs:
    target_probs = spec.context.adjust(logits, spec.sampling)
  tests = uniforms[:, spec.drafter.decisions :]
  verdict = spec.rule.verify(target_probs, proposal, tests)
  return Iteration(proposal, logits, target_probs, verdict, uniforms)


def commit(
  spec: Speculation,
  state: DecodeState,
  iteration: Iteration,
  features: Float[Array, "B N D"],
) -> tuple[DecodeState, Iteration]:
  """Appends the accepted tokens and the one after them to each live row.

  The caches, the drafter and the policy follow; the iteration is told with its counts.
  """
  context, proposal, verdict = spec.context, iteration.proposal, iteration.verdict
  before, (tokens, info, ends) = state, _emitted(spec, state, iteration)
  is_full = info.emitted >= state.remaining(context.max_length)
  state = state.replace(
    sequences=_append(state.sequences, tokens, state.lengths),
    lengths=state.lengths + info.emitted,
    ended=state.ended | ends | is_full,
    scores=state.scores + info.log_prob,
    iteration=state.iteration + 1,
    target_cache=_keep_path(state.target_cache, before.lengths, proposal, verdict),
    drafter_state=spec.drafter.commit(context, state.drafter_state, verdict, features),
    policy_state=context.policy.learn(state.policy_state, info),
  )
  return state, iteration.replace(info=info)


def _keep_path(cache, lengths, proposal, verdict) -> Cache:
  """Returns the cache with the accepted path's entries where a chain's would be."""
  if proposal.tree.is_chain:
    return cache
  path = proposal.tree.path(verdict.last)[:, 1:]
  return cache.gathered(lengths[:, None] - 1 + path, lengths)


def is_cut(proposal, verdict) -> Bool[Array, "B"]:
  """Returns where a drafted token after the last accepted one counted."""
  parents = jnp.asarray(proposal.tree.parents)
  parents = jnp.broadcast_to(parents, proposal.tokens.shape)
  return ((parents == verdict.last[:, None]) & proposal.is_valid).any(axis=1)


def _emitted(spec, state, iteration):
  """Returns the tokens [B, D + 1] of each row, what is counted, and which rows end."""
  proposal, verdict = iteration.proposal, iteration.verdict
  target_probs = iteration.target_probs
  live, tree = ~state.ended, proposal.tree
  accepted, path = tree.depth_of(verdict.last), tree.path(verdict.last)
  places = jnp.arange(path.shape[1])
  drafted = jnp.take_along_axis(proposal.tokens, path[:, 1:] - 1, axis=1)
  tokens = jnp.where(
    places < accepted[:, None],
    jnp.pad(drafted, ((0, 0), (0, 1))),
    verdict.next_token[:, None],
  ).astype(jnp.int32)
  # An accepted end of sequence takes no recovered or bonus token after it.
  ends = is_end(tokens, spec.context.eos_id) & (places <= accepted[:, None])
  emitted = jnp.where(ends.any(axis=1), ends.argmax(axis=1) + 1, accepted + 1) * live
  is_emitted = places < emitted[:, None]
  tokens = jnp.where(is_emitted, tokens, 0)
  at = jnp.arange(live.size)[:, None], path
  if spec.rule.reads_probs:
    log_probs = jnp.log(target_probs[(*at, tokens)])
  else:
    log_probs = certain_log_prob(target_probs)[at]
  tried = (accepted + is_cut(proposal, verdict)) * live
  info = StepInfo(
    target_calls=live.astype(jnp.int32),
    drafted=proposal.num_valid * live,
    accepted=accepted * live,
    acceptance_positions=tried,
    acceptance_mass=_mass(spec, target_probs, proposal, accepted * live, tried),
    emitted=emitted,
    log_prob=jnp.where(is_emitted, log_probs, 0.0).sum(axis=1),
  )
  return tokens, info, ends.any(axis=1)


def _mass(spec, target_probs, proposal, accepted, tried) -> Float[Array, "B"]:
  """Returns the sum of min(p, q) over the tried tokens; of trees, which have none, 0.

  It is NaN where a distribution of the draft's was.
  """
  # A certain token is -1 where there was none to take.
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
    beta = chain.drafted_probs(target_probs, proposal)
  else:
    beta = acceptance_mass(target_probs[:, :-1], proposal.draft_probs)
  is_tried = jnp.arange(proposal.tree.size) < tried[:, None]
  return jnp.where(is_tried, beta, 0.0).sum(axis=1)


def _append(sequences, tokens, lengths):
  # Rows that have ended write zeros over zeros.
  write_row = jax.vmap(
    lambda row, new, start: jax.lax.dynamic_update_slice(row, new, (start,))
  )
  return write_row(sequences, tokens, lengths)
