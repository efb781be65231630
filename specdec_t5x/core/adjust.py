"""The distribution that is sampled from, given logits: by XLA, on any device.

`native.distributions` has the same by our own kernel. Which of them computes is chosen
where a decoder is built, and reaches the loop and the drafters as an `AdjustFn`.
"""

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

_TILE_ROWS = 32  # A byte counts them.


def adjusted_probs(
  logits: Float[Array, "*batch V"], sampling: Sampling
) -> Float[Array, "*batch V"]:
  """Returns the distribution that `sampling` draws from, given a model's logits.

  Args:
    logits: of any float dtype.
    sampling: the adjustment.

  Returns:
    float32 probabilities; NaN, all of them, where a logit is NaN or infinity.
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
  mass = lambda kept: jnp.where(kept, probs, 0).sum(axis=(-3, -2, -1))
  return _keep_fewest(logits, mass, p)


def _count(kept):
  # XLA on CPU adds bytes faster than numbers of four.
  return kept.sum(axis=-2, dtype=jnp.uint8).sum(axis=(-2, -1), dtype=jnp.int32)


def _keep_fewest(logits, amount, enough):
  """Returns the logits with all but the fewest largest that are enough at -inf.

  Ties stay together. By bisection on the order of the floats' bits, until each row has
  just enough, or one logit less is too few: XLA's sort and top_k compare one number at
  a time on CPU.

  Args:
    logits: [.., V].
    amount: of what is kept, as `_tiles`.
    enough: of it.
  """
  keys = _ordered(logits)
  tiles = _tiles(keys)

  def is_open(state):
    bit, _, found, count, too_few = state
    return (bit > 0) & ((found > enough) & (count > too_few + 1)).any()

  def with_bit(state):
    bit, least, found, count, too_few = state
    raised = least | bit
    kept = tiles >= raised[..., None, None, None]
    new, new_count = amount(kept), _count(kept)
    choose = lambda one, other: jnp.where(new >= enough, one, other)
    return (
      bit >> 1,
      choose(raised, least),
      choose(new, found),
      choose(new_count, count),
      choose(too_few, new_count),
    )

  none = jnp.zeros(logits.shape[:-1], jnp.int32)
  every = none + logits.shape[-1]
  start = jnp.uint32(1 << 31), none.astype(jnp.uint32), none + jnp.inf, every, none
  _, least, *_ = jax.lax.while_loop(is_open, with_bit, start)
  return jnp.where(keys >= least[..., None], logits, -jnp.inf)


def _tiles(values):
  """Returns [.., V] as [.., T, R, 128], zeros behind; R is 32 or fewer."""
  rows = min(_TILE_ROWS, -(-values.shape[-1] // LANES))
  lanes = in_lanes(values, 0, rows)
  return lanes.reshape(*lanes.shape[:-2], -1, rows, LANES)


def _ordered(values):
  """Returns whole numbers in the order of these float32 numbers."""
  values = jnp.where(values == 0, 0.0, values)  # -0.0 too; XLA drops "+ 0.0".
  bits = jax.lax.bitcast_convert_type(values, jnp.uint32)
  sign = jnp.uint32(1) << 31
  return jnp.where(bits >= sign, ~bits, bits | sign)
