"""Scoring no more of a block than its longest draft needs, or always as much.

On CPUs a call of the target costs more the wider its block is. Shapes are static, so
there are a few widths to choose from; each is a copy of the network in the program.

Shapes: B rows, G gamma, K = G + 1, V vocabulary, D width of the features.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_t5x.core.types import ExtendFn, Proposal
from specdec_t5x.native import platforms

# Tokens of each block where all blocks have one width: a GPU's and a TPU's products of
# eight rows cost what those of one row cost.
FIXED_WIDTH = 8


def is_fixed(
  same_bits: bool | None, rows: int, drafted: int, is_chain: bool = True
) -> bool:
  """Returns whether every call of the target scores `FIXED_WIDTH` tokens.

  Args:
    same_bits: what was asked for; None leaves it to the platform and the batch: blocks
      have one width on GPUs and TPUs at batch size 1.
    rows: B, that decode at once.
    drafted: as for `check_same_bits`.
    is_chain: likewise.
  """
  if same_bits is None:
    is_cheap = rows == 1 and not platforms.wide_blocks_cost_more()
    return is_cheap and is_chain and drafted < FIXED_WIDTH
  return same_bits


def check_same_bits(same_bits: bool | None, drafted: int, is_chain: bool) -> None:
  """Raises a ValueError where blocks of `FIXED_WIDTH` tokens can't be had.

  Args:
    same_bits: what was asked for.
    drafted: tokens of a block beside the last known one.
    is_chain: whether these follow one another.
  """
  if same_bits not in (None, True, False):
    raise ValueError(f"SAME_BITS must be True, False or None, got {same_bits!r}.")
  if same_bits and not (is_chain and drafted < FIXED_WIDTH):
    shape = "" if is_chain else " as a tree"
    raise ValueError(
      f"SAME_BITS=True needs drafts of at most {FIXED_WIDTH - 1} tokens, one after the "
      f"other, got {drafted} tokens{shape}: every call of the target scores "
      f"{FIXED_WIDTH} tokens. Lower GAMMA, or leave SAME_BITS out."
    )


def of_fixed_width(extend: ExtendFn) -> ExtendFn:
  """Returns `extend`, computing blocks of `FIXED_WIDTH` tokens whatever is asked for.

  Fillers follow the tokens. The cache needs room for them; the next block overwrites
  what they left there.
  """

  def extend_wide(cache, tokens):
    count = tokens.shape[1]
    fillers = ((0, 0), (0, FIXED_WIDTH - count))
    logits, features, cache = extend(cache, jnp.pad(tokens, fillers))
    # Behind a barrier, or the compiler may drop the fillers' rows from the products.
    logits, features = jax.lax.optimization_barrier((logits, features))
    # The fillers are not among the cache's entries.
    cache = cache.at(cache.index - (FIXED_WIDTH - count))
    return logits[:, :count], features[:, :count], cache

  return extend_wide


def block_widths(gamma: int, least: int = 1) -> tuple[int, ...]:
  """Returns the widths that blocks may have, none below `least`.

  On CPU 1, 2, 4, 8 and so on, and gamma + 1; elsewhere 1 and gamma + 1.
  """
  few = 1 if not platforms.wide_blocks_cost_more() else gamma + 1
  powers = [2**i for i in range(few) if least <= 2**i < gamma + 1]
  return (*powers, gamma + 1)


def narrowest(widths: tuple[int, ...], num_valid: Int[Array, "B"]) -> Int[Array, ""]:
  """Returns which width holds the last known token and all that counts of any draft."""
  return (jnp.array(widths) < num_valid.max() + 1).sum()


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
      put = lambda buffer, new: buffer.at[:, : new.shape[1]].set(new)
      return jnp.array(False), (put(logits, new[0]), put(features, new[1]), cache)

    return body

  # A loop of at most one turn for each width, and not `lax.switch`: XLA updates what a
  # loop carries in place, but copies the whole cache into and out of a branch.
  for i, width in enumerate(widths):
    turn = chosen == i, scored
    _, scored = jax.lax.while_loop(lambda turn: turn[0], call(width), turn)
  return scored
