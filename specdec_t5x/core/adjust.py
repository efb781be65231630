"""Computes the sampling distribution from logits with XLA, on any device.

`native.distributions` computes the same distribution with a native kernel. The decoder
chooses the implementation when it is built, and passes the implementation to the loop
and the drafters as an `AdjustFn`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped, UInt32

from specdec_t5x.core.distributions import (
  LANES,
  Sampling,
  argmax,
  certain_log_prob,
  in_lanes,
)

_TILE_ROWS = 32  # Few enough that a byte can count them.


def adjusted_probs(
  logits: Float[Array, "*batch V"], sampling: Sampling
) -> Float[Array, "*batch V"]:
  """Returns the distribution that `sampling` draws from, given a model's logits.

  Args:
    logits: of any float dtype.
    sampling: the adjustment.

  Returns:
    float32 probabilities; a row is NaN throughout if a logit is NaN or infinity.
  """
  logits = logits.astype(jnp.float32)
  if sampling.greedy:
    one_hot = jax.nn.one_hot(argmax(logits), logits.shape[-1])
    return one_hot + certain_log_prob(logits)[..., None]
  logits = logits / sampling.temperature
  if sampling.top_k:
    logits = _keep_top_k(logits, min(sampling.top_k, logits.shape[-1]))
  if sampling.top_p:
    logits = _keep_top_p(logits, sampling.top_p)
  return jax.nn.softmax(logits)


def _keep_top_k(logits, k):
  return _keep_fewest(logits, _count, k)


def _keep_top_p(logits, p):
  probs = _tiles(jax.lax.stop_gradient(jax.nn.softmax(logits)))

  def mass(kept):
    return jnp.where(kept, probs, 0).sum(axis=(-3, -2, -1))

  return _keep_fewest(logits, mass, p)


def _count(kept):
  # XLA on CPU adds bytes faster than 4-byte integers.
  return kept.sum(axis=-2, dtype=jnp.uint8).sum(axis=(-2, -1), dtype=jnp.int32)


class _Bisection(NamedTuple):
  """The state of a bisection on the threshold of each row.

  Attributes:
    bit: the bit to decide next.
    least: the threshold so far: a key of at least `least` is kept.
    amount: the amount of the keys that `least` keeps.
    count: the number of keys that `least` keeps.
    too_few: the largest number of keys that proved insufficient.
  """

  bit: UInt32[Array, ""]
  least: UInt32[Array, "*batch"]
  amount: Shaped[Array, "*batch"]
  count: Int[Array, "*batch"]
  too_few: Int[Array, "*batch"]


def _keep_fewest(logits, amount, enough):
  """Sets all logits to -inf except the fewest largest logits that are enough.

  Ties stay together. The threshold is found by bisection on the bits of the floats in
  increasing order. The bisection ends when each row has exactly enough, or when one
  logit less is too few. XLA's sort and top_k are slow on CPU, as they compare one
  number at a time.

  Args:
    logits: [.., V].
    amount: from a mask of kept logits, in the layout of `_tiles`, to the kept amount.
    enough: the amount to keep at least.
  """
  keys = _ordered(logits)
  tiles = _tiles(keys)

  def is_open(state):
    is_row_open = (state.amount > enough) & (state.count > state.too_few + 1)
    return (state.bit > 0) & is_row_open.any()

  def decide_bit(state):
    raised = state.least | state.bit
    kept = tiles >= raised[..., None, None, None]
    kept_amount = amount(kept)
    kept_count = _count(kept)
    suffices = kept_amount >= enough
    return _Bisection(
      bit=state.bit >> 1,
      least=jnp.where(suffices, raised, state.least),
      amount=jnp.where(suffices, kept_amount, state.amount),
      count=jnp.where(suffices, kept_count, state.count),
      too_few=jnp.where(suffices, state.too_few, kept_count),
    )

  zeros = jnp.zeros(logits.shape[:-1], jnp.int32)
  start = _Bisection(
    bit=jnp.uint32(1 << 31),
    least=zeros.astype(jnp.uint32),
    amount=zeros + jnp.inf,
    count=zeros + logits.shape[-1],
    too_few=zeros,
  )
  least = jax.lax.while_loop(is_open, decide_bit, start).least
  return jnp.where(keys >= least[..., None], logits, -jnp.inf)


def _tiles(values):
  """Reshapes [.., V] to [.., T, R, 128], padded with zeros; R is at most 32."""
  rows = min(_TILE_ROWS, -(-values.shape[-1] // LANES))
  lanes = in_lanes(values, 0, rows)
  return lanes.reshape(*lanes.shape[:-2], -1, rows, LANES)


def _ordered(values):
  """Maps float32 numbers to unsigned integers in the same order."""
  values = jnp.where(values == 0, 0.0, values)  # -0.0 too; XLA drops "+ 0.0".
  bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
  sign = jnp.uint32(1) << 31
  return jnp.where(bits >= sign, ~bits, bits | sign)
