"""Scoring no more of a block than its longest draft needs.

On CPUs a call of the target costs more the wider its block is. Shapes are static, so
there are a few widths to choose from; each is a copy of the network in the program.

Shapes: B rows, G gamma, K = G + 1, V vocabulary, D width of the features.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_t5x.core.types import ExtendFn, Proposal
from specdec_t5x.native import platforms


def block_widths(gamma: int, least: int = 1) -> tuple[int, ...]:
  """Returns the widths that blocks may have, none below `least`.

  On CPU 1, 2, 4, 8 and so on, and gamma + 1; elsewhere 1 and gamma + 1.
  """
  few = 1 if not platforms.wide_blocks_cost_more() else gamma + 1
  powers = [2**i for i in range(few) if least <= 2**i < gamma + 1]
  return (*powers, gamma + 1)


def narrowest(widths: tuple[int, ...], num_valid: Int[Array, "B"]) -> Int[Array, ""]:
  """Returns which width holds the last known token and all that counts of any draft."""
  needed = num_valid.max() + 1
  return (jnp.array(widths) < needed).sum()


def score(
  extend: ExtendFn,
  cache,
  last: Int[Array, "B"],
  proposal: Proposal,
  least: int = 1,
):
  """Scores the last known token and what counts of the draft in one call.

  Args:
    extend: the target.
    cache: its cache.
    last: the last known token.
    proposal: the draft.
    least: the narrowest width there is; each is compiled.

  Returns:
    Logits [B, K, V], features [B, K, D] and the cache. Logits and features are zeros
    beyond the width: no rule reads a position after `num_valid`.
  """
  block = jnp.concatenate([last[:, None], proposal.tokens], axis=1)
  widths = block_widths(proposal.tree.size, least)
  chosen = narrowest(widths, proposal.num_valid)
  logits, features = jax.eval_shape(lambda *args: extend(*args)[:2], cache, block)
  zeros = lambda shape: jnp.zeros(shape.shape, shape.dtype)
  scored = zeros(logits), zeros(features), cache

  def call(width):
    def body(turn):
      logits, features, cache = turn[1]
      *new, cache = extend(cache, block[:, :width])
      put = lambda buffer, new: buffer.at[:, :width].set(new)
      return jnp.array(False), (put(logits, new[0]), put(features, new[1]), cache)

    return body

  # A loop of at most one turn for each width, and not `lax.switch`: XLA updates what a
  # loop carries in place, but copies the whole cache into and out of a branch.
  for i, width in enumerate(widths):
    turn = chosen == i, scored
    _, scored = jax.lax.while_loop(lambda turn: turn[0], call(width), turn)
  return scored
