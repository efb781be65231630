"""Known mistakes of loops and rules, planted in place of the right code."""

import dataclasses

import jax
import jax.numpy as jnp

from specdec_t5x.core import distributions, noise
from specdec_t5x.core.distributions import LEVELS, sample
from specdec_t5x.core.rules import block, coupled, kseq, recursive, token, traversal
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.types import Verdict
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.contracts import Context, decisions_of, lengths_of
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.decoding.state import DecodeState, unit_uniforms
from specdec_t5x.drafters import siblings
from specdec_t5x.network import cache
from tests.exactness.planting import trap
from tests.hash_model import TokenCache


@trap("perfect_draft", loop, "commit")
def no_bonus_token(ctx, state, iteration, features, commit=loop.commit):
  new, info = commit(ctx, state, iteration, features)
  is_full = (iteration.verdict.last == ctx.drafter.tree.size) & ~new.ended
  lengths = jnp.where(is_full, new.lengths - 1, new.lengths)
  return new.replace(lengths=lengths), info


@trap("token_loop", loop, "commit")
def end_of_sequence_unseen_in_a_draft(
  ctx, state, iteration, features, commit=loop.commit
):
  blind = dataclasses.replace(ctx, eos_id=-1)
  seen = commit(ctx, state, iteration, features)
  unseen = commit(blind, state, iteration, features)
  has_accepted = iteration.verdict.last > 0

  def pick(a, b):
    return jnp.where(has_accepted.reshape(-1, *[1] * (a.ndim - 1)), a, b)

  fields = {
    name: pick(getattr(unseen[0], name), getattr(seen[0], name))
    for name in ("sequences", "lengths", "ended")
  }
  return seen[0].replace(**fields), seen[1]


@trap("counts", loop, "commit")
def rows_that_have_ended_go_on(ctx, state, *args, commit=loop.commit):
  return commit(ctx, state.replace(ended=jnp.zeros_like(state.ended)), *args)


@trap("counts", Context, "draft_lengths")
def no_limit_by_what_remains(self, state):
  lengths = self.policy.lengths(state.policy_state, lengths_of(self.drafter))
  return jnp.broadcast_to(lengths, state.lengths.shape)


@trap("transformers", cache, "write", alone=True)
def write_adds(buffer, new, index, write=cache.write):
  return buffer + write(jnp.zeros_like(buffer), new, index)


@trap("token_loop", TokenCache, "at")
def one_index_for_all_rows(self, index):
  return self.replace(index=jnp.full_like(index, index[0]))


@trap("draws", DecodeState, "uniforms")
def rows_share_their_draws(self, count):
  key = jax.random.fold_in(self.keys[0], self.iteration[0])
  draw = unit_uniforms(key, (count, LEVELS))
  return jnp.broadcast_to(draw, (self.keys.size, *draw.shape))


@trap("draws", DecodeState, "uniforms")
def same_draws_each_iteration(self, count):
  return jax.vmap(lambda key: unit_uniforms(key, (count, LEVELS)))(self.keys)


@trap("coupled_loop", DecodeState, "uniforms_of_places")
def noise_of_the_iteration(self, count):
  return self.uniforms(count)


@trap("coupled_loop", DecodeState, "uniforms_of_places")
def same_noise_at_all_places(self, count):
  return jnp.repeat(self.replace(iteration=self.lengths * 0).uniforms(1), count, axis=1)


@trap("coupled_loop", loop, "draws")
def rule_has_the_noise_of_the_place_before(ctx, state, draws=loop.draws):
  drafted = decisions_of(ctx.drafter)
  uniforms = draws(ctx, state)
  before = state.replace(lengths=state.lengths - 1)
  rule_uniforms = draws(ctx, before)[:, drafted:]
  return jnp.concatenate([uniforms[:, :drafted], rule_uniforms], axis=1)


@trap("coupled_loop", loop, "draws")
def draft_has_noise_of_its_own(ctx, state, draws=loop.draws):
  drafted = decisions_of(ctx.drafter)
  uniforms = draws(ctx, state)
  draft_uniforms = state.uniforms(drafted)
  return jnp.concatenate([draft_uniforms, uniforms[:, drafted:]], axis=1)


@trap("coupled_loop", coupled, "race")
def nodes_have_the_root_s_noise(probs, uniforms):
  return noise.race(probs, uniforms[:, :1])


@trap("candidates_loop", loop, "score_tree")
def nodes_see_cousins(extend, cache, block, tree):
  sees = jnp.tri(block.shape[1], dtype=bool)
  sees = jnp.broadcast_to(sees, (*block.shape, block.shape[1]))
  return extend(cache, block, cache.index[:, None] + tree.depths, sees)


@trap("candidates_loop", loop, "score_tree")
def positions_by_slot(extend, cache, block, tree):
  sees = jnp.broadcast_to(tree.sees, (*block.shape, block.shape[1]))
  return extend(cache, block, cache.index[:, None] + jnp.arange(block.shape[1]), sees)


@trap("siblings_loop", siblings, "_without")
def sibling_s_probs_not_renormalised(distribution, token):
  return jnp.where(
    jnp.arange(distribution.shape[-1]) == token[..., None], 0.0, distribution
  )


@trap("traversal_rule", traversal, "_without")
def weights_as_they_were(nodes, node, left, without=traversal._without):
  distributions, weights, is_set = without(nodes, node, left)
  parent = nodes.parents[node - 1]
  return distributions, left[1].at[parent].set(weights[parent]), is_set


def passing(target_probs, proposal, uniforms):
  p = token.drafted_probs(target_probs, proposal)
  passes = uniforms[:, :-1, -1] < token.ratio(p, proposal.drafted_probs())
  return passes & proposal.is_valid


@trap("token_rule", Token, "verify")
def verify_with_one_uniform_twice(self, target_probs, proposal, uniforms):
  count = token.leading(passing(target_probs, proposal, uniforms))
  distribution = token.next_token_probs(target_probs, proposal, count)
  return Verdict(count, sample(distribution, uniforms[:, 0]))


@trap("wide_loop", distributions, "sample")
def one_uniform_for_all_levels(probs, uniforms):
  return sample(probs, jnp.broadcast_to(uniforms[..., -1:], uniforms.shape))


@trap("moved_entries", TokenCache, "gathered")
def two_places_swapped(self, sources, destination, gathered=TokenCache.gathered):
  cache = gathered(self, sources, destination)
  rows = jnp.arange(destination.size)
  first = cache.tokens[rows, destination]
  last = cache.tokens[rows, destination + 2]
  tokens = cache.tokens.at[rows, destination].set(last)
  return cache.replace(tokens=tokens.at[rows, destination + 2].set(first))


@trap("token_rule", Token, "verify")
def verify_all_the_tokens_apart(self, target_probs, proposal, uniforms):
  count = passing(target_probs, proposal, uniforms).sum(axis=1)
  distribution = token.next_token_probs(target_probs, proposal, count)
  return Verdict(count, sample(distribution, uniforms[:, -1]))


@trap("token_rule", token, "draft_probs_at")
def q_of_the_position_before(proposal, position, size, probs_at=token.draft_probs_at):
  return probs_at(proposal, jnp.maximum(position - 1, 0), size)


@trap("token_rule", token, "residual")
@trap("kseq_rule", kseq, "residual")
@trap("recursive_rule", recursive, "residual")
def target_probs_as_residual(target_probs, draft_probs):
  return target_probs


@trap("token_rule", token, "residual")
def residual_not_clipped(target_probs, draft_probs):
  return jnp.abs(target_probs - draft_probs)


@trap("probs_apart_by_rounding", token, "residual")
def residual_without_mass_is_nothing(target_probs, draft_probs):
  excess = jnp.maximum(target_probs - draft_probs, 0.0)
  return excess / jnp.maximum(excess.sum(axis=-1, keepdims=True), 1e-30)


@trap("block_rule", block, "longest")
def first_failure_ends_the_block(passes):
  return token.leading(passes)


@trap("block_rule", block, "residual")
def unweighted_block_residual(scaled, draft_probs):
  scale = scaled.sum(axis=-1, keepdims=True)
  return distributions.residual(scaled / jnp.where(scale > 0, scale, 1), draft_probs)


@trap("skipping_loop", loop, "score")
def the_draft_s_keys_stay(ctx, state, proposal, score=loop.score):
  """Keeps the draft's cache entries, like a target that does not overwrite them."""
  scored = score(ctx, state, proposal)
  block = jnp.concatenate([state.last_tokens()[:, None], proposal.tokens], axis=1)
  draft = ctx.drafter.extend(ctx)
  _, _, cache = draft(state.target_cache.at(state.lengths - 1), block)
  return scored[0].replace(target_cache=cache), *scored[1:]


@trap("turns_loop", loop, "plain_step")
def plain_turn_leaves_its_draws(*args, step=loop.plain_step, **kwargs):
  state, log_prob = step(*args, **kwargs)
  return state.replace(iteration=state.iteration - 1), log_prob


@trap("turns_loop", CostAware, "update")
def plain_turn_is_not_counted(self, policy_state, info, update=CostAware.update):
  drafted = (info.drafted > 0).any()

  def pick(new, old):
    return jnp.where(drafted, new, old)

  return jax.tree.map(pick, update(self, policy_state, info), policy_state)


@trap("turns_loop", loop, "narrowest")
def no_place_for_the_last_token(blocks, num_valid, narrowest=loop.narrowest):
  return narrowest(blocks, num_valid - 1)


@trap("shared_length", loop, "limit")
def least_likely_of_all_is_dropped(proposal, most, eos_id, limit=loop.limit):
  """Drops the least likely token, like a budget that looks at the draws (TETRIS)."""
  limited = limit(proposal, most, eos_id)
  scores = jnp.cumprod(limited.drafted_probs(), axis=1)
  least = jnp.where(limited.is_valid, scores, jnp.inf).min()
  return limited.replace(is_valid=limited.is_valid & (scores > least))


@trap("windows_fixed", loop, "step")
@trap("windows_flushed", loop, "step")
def correction_by_its_residual(ctx, state, uniforms=None, step=loop.step):
  """Reports the distribution of the last draw instead of the whole test's."""
  state, iteration = step(ctx, state, uniforms)
  last = iteration.verdict.last
  probs = iteration.target_probs
  residual = token.next_token_probs(probs, iteration.proposal, last)
  probs = probs.at[jnp.arange(last.size), last].set(residual)
  return state, iteration.replace(target_probs=probs)


@trap("token_loop", TokenCache, "at")
def stale_cache_after_rollback(self, index):
  return self


@trap("kseq_rule", kseq, "least_rho")
def rho_is_one(p, q, count):
  return jnp.array(1.0)
