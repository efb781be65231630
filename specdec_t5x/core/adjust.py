"""Computes the sampling distribution from logits with XLA, on any device.

`native.distributions` computes the same distribution with a native kernel. The decoder
chooses the implementation when it is built, and passes the implementation to the loop
and the drafters as an `AdjustFn`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

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
    logits = _keep_fewest(logits, _count, min(sampling.top_k, logits.shape[-1]))
  if sampling.top_p:
    probs = _tiles(jax.lax.stop_gradient(jax.nn.softmax(logits)))

    def mass(kept):
      return jnp.where(kept, probs, 0).sum(axis=(-3, -2, -1))

    logits = _keep_fewest(logits, mass, sampling.top_p)
  return jax.nn.softmax(logits)


def _count(kept):
  # XLA on CPU adds bytes faster than 4-byte integers.
  return kept.sum(axis=-2, dtype=jnp.uint8).sum(axis=(-2, -1), dtype=jnp.int32)


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

  # The state: the bit to decide next, the least kept key, the amount and the number of
  # kept keys, and the largest number of keys that was too small.
  def is_open(state):
    bit, _, kept_amount, count, too_few = state
    return (bit > 0) & ((kept_amount > enough) & (count > too_few + 1)).any()

  def decide_bit(state):
    bit, least, kept_amount, count, too_few = state
    raised = least | bit
    kept = tiles >= raised[..., None, None, None]
    new_amount = amount(kept)
    new_count = _count(kept)
    suffices = new_amount >= enough
    least = jnp.where(suffices, raised, least)
    kept_amount = jnp.where(suffices, new_amount, kept_amount)
    count = jnp.where(suffices, new_count, count)
    too_few = jnp.where(suffices, too_few, new_count)
    return bit >> 1, least, kept_amount, count, too_few

  zeros = jnp.zeros(logits.shape[:-1], jnp.int32)
  all_logits = zeros + logits.shape[-1]
  bit = jnp.uint32(1 << 31)
  start = bit, zeros.astype(jnp.uint32), zeros + jnp.inf, all_logits, zeros

  def bisect(start):
    return jax.lax.while_loop(is_open, decide_bit, start)

  def bisect_all_bits(start):
    """Bisects in a known number of turns, because other loops stop a device."""

    def turn(_, state):
      select = functools.partial(jnp.where, is_open(state))
      return jax.tree.map(select, decide_bit(state), state)

    return jax.lax.fori_loop(0, 32, turn, start)

  _, least, *_ = jax.lax.platform_dependent(start, cpu=bisect, default=bisect_all_bits)
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
