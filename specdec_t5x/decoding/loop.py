"""The loop of a decode: draft, score, verify, commit, until every output has ended.

Source: Leviathan et al., ICML 2023, algorithm 1. A call of the target scores the last
known token and the draft. An iteration then emits, in this order:

  accepted tokens   drafted tokens that pass the rule: the path to `Verdict.last`
  a recovered token `Verdict.next_token` in place of the first rejected token
  or a bonus token  `Verdict.next_token` after a fully accepted draft
  nothing more      after an accepted end token, or when the output is full

An iteration without a draft (`plain_step`) emits the target's own token, in plain
decoding and where a policy rests.

Shapes: B rows, G drafted nodes, N = G + 1, D the tree's depth, K = D + 1, V vocabulary,
C decisions, L uniforms a decision.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.distributions import argmax, certain_log_prob, draw
from specdec_t5x.core.rules.token import drafted_probs
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Cache, EndTokens, ExtendFn, Proposal, is_end
from specdec_t5x.decoding.batching import Queue, refill
from specdec_t5x.decoding.contracts import Context, Observer, decisions, decisions_of
from specdec_t5x.decoding.state import (
  Decoded,
  DecodeState,
  Iteration,
  LoopFn,
  StepInfo,
  write_rows,
)
from specdec_t5x.network.net import extend_narrowly


def generate(
  ctx: Context,
  state: DecodeState,
  loop: LoopFn = jax.lax.while_loop,
  queue: Queue | None = None,
  observe: Observer | None = None,
) -> Decoded:
  """Decodes until every row has ended; `ctx.rule` guarantees the distribution.

  Args:
    ctx: how to decode; static.
    state: where to start.
    loop: `jax.lax.while_loop`, or an equivalent that can be watched.
    queue: further inputs for ended rows, or None.
    observe: records the iterations, from `state.observed` on.
  """
  state, queue = loop(
    is_unfinished, lambda carry: turn(ctx, *carry, loop, observe), (state, queue)
  )
  return state.decoded(ctx.max_length) if queue is None else queue.decoded(state)


def is_unfinished(carry: tuple[DecodeState, Queue | None]) -> Bool[Array, ""]:
  """Returns whether a turn is left."""
  return ~carry[0].ended.all() | _waits(carry)


def turn(
  ctx: Context,
  state: DecodeState,
  queue: Queue | None,
  loop: LoopFn,
  observe: Observer | None,
) -> tuple[DecodeState, Queue | None]:
  """Refills ended rows, drafts while a row drafts, and rests while no row does."""

  def can_iterate(carry):
    return ~carry[0].ended.all() & ~_waits(carry)

  def drafts(carry):
    return can_iterate(carry) & ~_rests(ctx, carry[0])

  def rests(carry):
    return can_iterate(carry) & _rests(ctx, carry[0])

  def advance(iterate, carry):
    before, queue = carry
    state, iteration = iterate(ctx, before)
    if observe:
      record = observe.observe(before.observed, before, iteration)
      state = state.replace(observed=record)
    return state, queue

  speculate = functools.partial(advance, step)
  rest = functools.partial(advance, plain_step)
  carry = (state, queue) if queue is None else refill(ctx, state, queue)
  if ctx.drafter is None:
    return loop(can_iterate, rest, carry)
  if not ctx.policy.may_rest:
    return loop(can_iterate, speculate, carry)
  return loop(rests, rest, loop(drafts, speculate, carry))


def _waits(carry) -> Bool[Array, ""]:
  """Returns whether the queue has to store a row's output or give a row an input."""
  state, queue = carry
  return jnp.array(False) if queue is None else queue.waiting(state).any()


def _rests(ctx: Context, state: DecodeState) -> Bool[Array, ""]:
  """Returns whether no row drafts in the next iteration."""
  rests = ~(ctx.draft_lengths(state) > 0).any()
  if ctx.drafter.traits.resumes:
    return rests
  # A drafter that does not resume lacks tokens of a rest until the row has ended.
  return rests | (state.has_rested & ~state.ended).any()


def step(
  ctx: Context, state: DecodeState, uniforms: Float[Array, "B C L"] | None = None
) -> tuple[DecodeState, Iteration]:
  """Runs one iteration: draft, score, verify, commit.

  `uniforms` are independent draws from U[0, 1), by default those of the state's keys.
  """
  uniforms = draws(ctx, state) if uniforms is None else uniforms
  state, proposal = draft(ctx, state, uniforms)
  state, logits, features = score(ctx, state, proposal)
  iteration = verify(ctx, proposal, logits, uniforms)
  return commit(ctx, state, iteration, features)


def plain_step(ctx: Context, state: DecodeState) -> tuple[DecodeState, Iteration]:
  """Extends every live row by the target's own token.

  The draw is that of the token after an empty draft: a row that does not draft gets the
  same sample whether or not other rows draft.
  """
  rows, last, live = jnp.arange(state.lengths.size), state.last_tokens(), ~state.ended
  cache = state.target_cache.at(state.lengths - 1)
  logits, _, cache = ctx.target.extend(cache, last[:, None])
  # Behind a barrier, or the compiler may compute the logits twice, for an observer.
  logits = jax.lax.optimization_barrier(logits)
  token, log_prob = _next_token(ctx, state, logits[:, 0])
  lengths = state.lengths + live
  is_full = live >= state.remaining(ctx.max_length)
  # An ended row writes its own last token again.
  token = jnp.where(live, token, last)
  log_prob = jnp.where(live, log_prob, 0.0)
  one = live.astype(jnp.int32)
  info = StepInfo.zeros(rows.size)
  info = info.replace(target_calls=one, emitted=one, log_prob=log_prob)
  state = state.replace(
    sequences=state.sequences.at[rows, lengths - 1].set(token),
    lengths=lengths,
    ended=state.ended | is_end(token, ctx.eos_id) | is_full,
    iteration=state.iteration + 1,
    statistics=jax.tree.map(jnp.add, state.statistics, info),
    target_cache=cache,
    policy_state=ctx.policy.update(state.policy_state, info),
    has_rested=state.has_rested | (ctx.drafter is not None),
  )
  return state, Iteration(logits, info)


def _next_token(ctx, state, logits):
  """Returns the next tokens of the rows, and their log-probabilities."""
  if ctx.sampling.greedy:
    return argmax(logits).astype(jnp.int32), certain_log_prob(logits)
  if ctx.sampling.coupled:
    uniforms = state.uniforms_of_places(1)[:, 0]
  else:
    uniforms = state.uniforms(decisions(ctx.drafter))[:, -1]
  token, probs = draw(logits, ctx.sampling, uniforms, ctx.adjust)
  return token, jnp.log(jnp.take_along_axis(probs, token[:, None], axis=1)[:, 0])


def draws(ctx: Context, state: DecodeState) -> Float[Array, "B C L"]:
  """Returns the uniforms of an iteration: the drafter's, then the rule's.

  The i-th coupled draw, of the drafter and of the rule, is that of the i-th next place.
  """
  if not ctx.sampling.coupled:
    return state.uniforms(decisions(ctx.drafter))
  drafted, judged = decisions_of(ctx.drafter), ctx.drafter.tree.size + 1
  uniforms = state.uniforms_of_places(max(drafted, judged))
  return jnp.concatenate([uniforms[:, :drafted], uniforms[:, :judged]], axis=1)


def draft(
  ctx: Context, state: DecodeState, uniforms: Float[Array, "B C L"]
) -> tuple[DecodeState, Proposal]:
  """Returns the state after drafting, and the draft without tokens that can't count."""
  drafter_draws = uniforms[:, : decisions_of(ctx.drafter)]
  proposal, drafter_state = ctx.drafter.propose(ctx, state, drafter_draws)
  proposal = limit(proposal, ctx.draft_lengths(state), ctx.eos_id)
  return state.replace(drafter_state=drafter_state), proposal


def limit(proposal: Proposal, lengths: Int[Array, "B"], eos_id: EndTokens) -> Proposal:
  """Returns the proposal with at most `lengths` tokens, and no token after an end."""
  tree = proposal.tree
  may_count = proposal.is_valid & (tree.depths[..., 1:] <= lengths[:, None])
  # A node counts if it and its ancestors may count, and no ancestor is an end.
  ends = jnp.pad(is_end(proposal.tokens, eos_id), ((0, 0), (1, 0)))
  drops = jnp.pad(~may_count, ((0, 0), (1, 0)))
  above = tree.sees & ~jnp.eye(tree.size + 1, dtype=bool)
  dropped = (tree.sees & drops[:, None]).any(-1) | (above & ends[:, None]).any(-1)
  return proposal.replace(is_valid=~dropped[:, 1:])


def score(ctx: Context, state: DecodeState, proposal: Proposal):
  """Scores the last known token and the draft in one call of the target.

  Returns the state with the new cache, logits [B, N, V] and features [B, N, D].
  """
  # The last known token heads the block: the target has not read this token.
  block = jnp.concatenate([state.last_tokens()[:, None], proposal.tokens], axis=1)
  cache = state.target_cache.at(state.lengths - 1)
  if len(ctx.widths) > 1:
    # No rule reads a position after `num_valid`.
    chosen = narrowest(ctx.widths, proposal.num_valid)
    scored = extend_narrowly(ctx.target.extend, cache, block, ctx.widths, chosen)
  else:
    scored = score_tree(ctx.target.extend, cache, block, proposal.tree)
  logits, features, cache = scored
  return state.replace(target_cache=cache), logits, features


def score_tree(extend: ExtendFn, cache: Cache, block: Int[Array, "B N"], tree: Tree):
  """Scores the tokens of all nodes; returns logits, features and the cache."""
  if tree.is_chain:
    return extend(cache, block)
  sees = jnp.broadcast_to(tree.sees, (*block.shape, block.shape[1]))
  return extend(cache, block, cache.index[:, None] + tree.depths, sees)


def narrowest(widths: tuple[int, ...], num_valid: Int[Array, "B"]) -> Int[Array, ""]:
  """Returns the index of the narrowest width that holds every row's draft."""
  return (jnp.array(widths) < num_valid.max() + 1).sum()


def verify(
  ctx: Context,
  proposal: Proposal,
  logits: Float[Array, "B N V"],
  uniforms: Float[Array, "B C L"],
) -> Iteration:
  """Decides by the rule about the accepted tokens and the token after them."""
  reads_probs = ctx.rule.reads == "probs"
  target_probs = ctx.adjust(logits, ctx.rule_sampling) if reads_probs else logits
  rule_draws = uniforms[:, decisions_of(ctx.drafter) :]
  verdict = ctx.rule.verify(target_probs, proposal, rule_draws)
  return Iteration(logits, None, proposal, target_probs, verdict, uniforms)


def commit(
  ctx: Context,
  state: DecodeState,
  iteration: Iteration,
  features: Float[Array, "B N D"],
) -> tuple[DecodeState, Iteration]:
  """Appends the new tokens to live rows, and updates all parts of the state."""
  proposal, verdict = iteration.proposal, iteration.verdict
  tokens, emitted, ends = _emitted_tokens(ctx, state, iteration)
  info = _counts(ctx, state, iteration, tokens, emitted)
  cache = state.target_cache
  if not proposal.tree.is_chain:
    # The accepted path's entries move to where a chain's would be.
    path = proposal.tree.path(verdict.last)[:, 1:]
    cache = cache.gathered(state.lengths[:, None] - 1 + path, state.lengths)
  state = state.replace(
    # Rows that have ended write zeros over zeros.
    sequences=write_rows(state.sequences, tokens, state.lengths),
    lengths=state.lengths + emitted,
    ended=state.ended | ends | (emitted >= state.remaining(ctx.max_length)),
    iteration=state.iteration + 1,
    statistics=jax.tree.map(jnp.add, state.statistics, info),
    target_cache=cache,
    drafter_state=ctx.drafter.commit(ctx, state.drafter_state, verdict, features),
    policy_state=ctx.policy.update(state.policy_state, info),
  )
  return state, iteration.replace(info=info)


def is_cut(proposal, verdict) -> Bool[Array, "B"]:
  """Returns the rows in which a drafted token was rejected."""
  parents = jnp.asarray(proposal.tree.parents)
  return ((parents == verdict.last[:, None]) & proposal.is_valid).any(axis=1)


def _emitted_tokens(ctx, state, iteration):
  """Returns new tokens [B, K], numbers of new tokens [B], and ended rows [B]."""
  proposal, verdict = iteration.proposal, iteration.verdict
  accepted = proposal.tree.depth_of(verdict.last)
  path = proposal.tree.path(verdict.last)
  places = jnp.arange(path.shape[1])
  drafted = jnp.take_along_axis(proposal.tokens, path[:, 1:] - 1, axis=1)
  drafted = jnp.pad(drafted, ((0, 0), (0, 1)))
  is_accepted = places < accepted[:, None]
  next_token = verdict.next_token.astype(jnp.int32)
  tokens = jnp.where(is_accepted, drafted, next_token[:, None])
  # No recovered or bonus token follows an accepted end of sequence.
  ends = is_end(tokens, ctx.eos_id) & (places <= accepted[:, None])
  emitted = jnp.where(ends.any(axis=1), ends.argmax(axis=1) + 1, accepted + 1)
  emitted = emitted * ~state.ended
  tokens = jnp.where(places < emitted[:, None], tokens, 0)
  return tokens, emitted, ends.any(axis=1)


def _counts(ctx, state, iteration, tokens, emitted) -> StepInfo:
  """Returns the counts of an iteration, given the new tokens of the rows."""
  proposal, verdict = iteration.proposal, iteration.verdict
  target_probs, live = iteration.target_probs, ~state.ended
  accepted = proposal.tree.depth_of(verdict.last)
  path = proposal.tree.path(verdict.last)
  rows = jnp.arange(live.size)[:, None]
  if ctx.rule.reads == "probs":
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
    acceptance_mass=_mass(ctx, target_probs, proposal, accepted * live, tried),
    emitted=emitted,
    log_prob=jnp.where(is_emitted, log_probs, 0.0).sum(axis=1),
  )


def _mass(ctx, target_probs, proposal, accepted, tried) -> Float[Array, "B"]:
  """Returns the sum of min(p, q) over a chain's tried tokens; NaN if q has NaN."""
  # The certain token of a distribution with NaN is -1.
  no_probs = proposal.tokens < 0
  if ctx.rule.reads == "argmax":
    mass = accepted.astype(jnp.float32)
  elif proposal.tree.is_chain:
    if proposal.draft_probs is None:
      beta = drafted_probs(target_probs, proposal)
    else:
      beta = jnp.minimum(target_probs[:, :-1], proposal.draft_probs).sum(axis=-1)
    is_tried = jnp.arange(proposal.tree.size) < tried[:, None]
    mass = jnp.where(is_tried, beta, 0.0).sum(axis=1)
  else:
    mass, no_probs = 0.0, no_probs | jnp.isnan(proposal.drafted_probs())
  is_lost = (no_probs & proposal.is_valid).any(axis=1) & (tried > 0)
  return jnp.where(is_lost, jnp.nan, mass)
