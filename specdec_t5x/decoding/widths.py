"""Block widths: the target scores only as many tokens as the longest draft needs.

On CPUs a call of the target costs more the wider its block is. Shapes are static, so
there are a few widths to choose from, each with a copy of the network in the program.
On other devices blocks may have a fixed width: plain and speculative decoding then
compute equal bits.

Shapes: B rows, G gamma, K = G + 1, V vocabulary, D width of the features.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from specdec_t5x.core.types import ExtendFn, Proposal
from specdec_t5x.native import platforms

# The fixed width of blocks: on GPUs and TPUs a product of eight rows costs as much as a
# product of a single row.
FIXED_WIDTH = 8


def is_fixed(
  same_bits: bool | None, rows: int, drafted: int, is_chain: bool = True
) -> bool:
  """Returns whether every call of the target scores `FIXED_WIDTH` tokens.

  Args:
    same_bits: whether a fixed width was asked for; by default on GPUs and TPUs at batch
      size 1.
    rows: B, the rows that decode at once.
    drafted: tokens of a block beside the last known token.
    is_chain: whether the drafted tokens are a chain.
  """
  if same_bits is None:
    is_cheap = rows == 1 and not platforms.wide_blocks_cost_more()
    return is_cheap and is_chain and drafted < FIXED_WIDTH
  return same_bits


def check_same_bits(same_bits: bool | None, drafted: int, is_chain: bool) -> None:
  """Raises a ValueError if blocks can't all have `FIXED_WIDTH` tokens.

  Args:
    same_bits: whether one width was asked for.
    drafted: tokens of a block beside the last known token.
    is_chain: whether the drafted tokens are a chain.
  """
  if same_bits not in (None, True, False):
    raise ValueError(f"SAME_BITS must be True, False or None, got {same_bits!r}.")
  if same_bits and not (is_chain and drafted < FIXED_WIDTH):
    shape = "" if is_chain else " as a tree"
    raise ValueError(
      f"SAME_BITS=True needs chains of at most {FIXED_WIDTH - 1} tokens, got {drafted} "
      f"tokens{shape}: every call of the target scores {FIXED_WIDTH} tokens. Lower "
      "GAMMA, or leave SAME_BITS out."
    )


def of_fixed_width(extend: ExtendFn) -> ExtendFn:
  """Returns `extend` with blocks padded to `FIXED_WIDTH` tokens.

  Fillers follow the tokens. The cache needs room for the fillers; the next block
  overwrites their entries.
  """

  def extend_wide(cache, tokens):
    count = tokens.shape[1]
    fillers = ((0, 0), (0, FIXED_WIDTH - count))
    logits, features, cache = extend(cache, jnp.pad(tokens, fillers))
    # Behind a barrier, or the compiler may drop the fillers' rows from the products.
    logits, features = jax.lax.optimization_barrier((logits, features))
    # Entries of fillers do not count.
    cache = cache.at(cache.index - (FIXED_WIDTH - count))
    return logits[:, :count], features[:, :count], cache

  return extend_wide


def block_widths(gamma: int, least: int = 1) -> tuple[int, ...]:
  """Returns the possible widths of blocks, none below `least`.

  On CPUs these are the powers of two up to gamma, and gamma + 1; elsewhere 1 and
  gamma + 1.
  """
  exponents = range(gamma + 1) if platforms.wide_blocks_cost_more() else range(1)
  powers = [2**i for i in exponents if least <= 2**i < gamma + 1]
  return (*powers, gamma + 1)


def narrowest(widths: tuple[int, ...], num_valid: Int[Array, "B"]) -> Int[Array, ""]:
  """Returns the index of the narrowest width that holds every row's draft."""
  return (jnp.array(widths) < num_valid.max() + 1).sum()


def score(
  extend: ExtendFn,
  cache: Any,
  last: Int[Array, "B"],
  proposal: Proposal,
  least: int = 1,
):
  """Scores the last known token and the counting part of the draft in one call.

  Args:
    extend: scores tokens by the target.
    cache: the target's cache.
    last: the last known token.
    proposal: the draft, a chain.
    least: the narrowest width; every width is compiled.

  Returns:
    Logits [B, K, V], features [B, K, D] and the cache. Logits and features are zeros
    beyond the width: no rule reads a position after `num_valid`.
  """
  block = jnp.concatenate([last[:, None], proposal.tokens], axis=1)
  widths = block_widths(proposal.tree.size, least)
  chosen = narrowest(widths, proposal.num_valid)
  shapes = jax.eval_shape(lambda cache, block: extend(cache, block)[:2], cache, block)
  logits, features = (jnp.zeros(shape.shape, shape.dtype) for shape in shapes)
  scored = logits, features, cache

  def score_at(width):
    def run(scored):
      logits, features, cache = scored
      new_logits, new_features, cache = extend(cache, block[:, :width])
      logits = logits.at[:, :width].set(new_logits)
      features = features.at[:, :width].set(new_features)
      return logits, features, cache

    return run

  for i, width in enumerate(widths):
    scored = run_if(chosen == i, score_at(width), scored)
  return scored


def run_if(condition: Bool[Array, ""], run: Callable[[Any], Any], carry: Any) -> Any:
  """Returns `run(carry)` if the condition holds, otherwise the carry.

  A loop of at most one turn, not `lax.cond`: XLA updates the carry of a loop in place,
  but copies it, with whole caches, into and out of a branch.
  """

  def turn(state):
    return jnp.array(False), run(state[1])

  return jax.lax.while_loop(lambda state: state[0], turn, (condition, carry))[1]
