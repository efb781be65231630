"""From logits to the law that is sampled from, and from a law to a token.

Standardised sampling (Leviathan et al., section 2.2): argmax, temperature, top-k and
nucleus sampling are all plain sampling from an adjusted law. The same adjustment
applies to target and draft, in T5X's order: temperature, top-k, top-p.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.checks import is_finite, is_probability, is_whole

# T5X treats lower temperatures as argmax, and so does this project.
MIN_TEMPERATURE = 1e-4
_LANES = 128


@dataclasses.dataclass(frozen=True)
class Sampling:
  """How to sample, for target and draft alike.

  Attributes:
    temperature: logits are divided by it; 0 is argmax.
    top_k: keep the k most likely tokens (and ties with the last); 0 keeps all.
    top_p: keep the fewest most likely tokens that reach this mass; 0 keeps all.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 0.0

  def __post_init__(self):
    if not is_finite(self.temperature):
      raise ValueError(
        f"temperature must be a finite number of at least 0, got {self.temperature!r}. "
        "0 is greedy decoding, 1 samples from the model as it is."
      )
    if not is_whole(self.top_k, 0):
      raise ValueError(
        f"top_k must be a whole number of at least 0, got {self.top_k!r}. 0 means off."
      )
    if not is_probability(self.top_p):
      raise ValueError(
        f"top_p must be between 0 and 1, got {self.top_p!r}. 0 means off."
      )
    if self.top_k and self.top_p:
      raise ValueError(
        f"At most one of top_k and top_p may be set, got top_k={self.top_k} and "
        f"top_p={self.top_p}. As in T5X; set one of them to 0."
      )

  @property
  def greedy(self) -> bool:
    """Whether the law is argmax's."""
    return self.temperature <= MIN_TEMPERATURE


GREEDY = Sampling(temperature=0.0)


def adjusted_probs(
  logits: Float[Array, "*batch V"], sampling: Sampling
) -> Float[Array, "*batch V"]:
  """Returns the law that `sampling` draws from, given a model's logits.

  Args:
    logits: of any float dtype.
    sampling: the adjustment.

  Returns:
    float32 probabilities; NaN, all of them, where a logit is NaN or infinity.
  """
  logits = logits.astype(jnp.float32)
  if sampling.greedy:
    # Not read off the maximum: YNNPACK's drops NaN (jaxlib 0.10.2 on CPU).
    is_number = (logits < jnp.inf).all(axis=-1, keepdims=True)
    return jnp.where(
      is_number, jax.nn.one_hot(argmax(logits), logits.shape[-1]), jnp.nan
    )
  logits = logits / sampling.temperature
  if sampling.top_k:
    logits = _keep_top_k(logits, min(sampling.top_k, logits.shape[-1]))
  if sampling.top_p:
    logits = _keep_top_p(logits, sampling.top_p)
  return jax.nn.softmax(logits)


def _keep_top_k(logits, k):
  smallest_kept = jax.lax.top_k(logits, k)[0][..., -1:]
  return jnp.where(logits < smallest_kept, -jnp.inf, logits)


def _keep_top_p(logits, p):
  descending = jnp.sort(logits, axis=-1, descending=True)
  probs = jax.nn.softmax(descending)
  # A token stays when the mass of the likelier ones does not reach p yet.
  kept = jnp.cumsum(probs, axis=-1) - probs < p
  smallest_kept = jnp.min(jnp.where(kept, descending, jnp.inf), axis=-1, keepdims=True)
  return jnp.where(logits < smallest_kept, -jnp.inf, logits)


def draw(
  logits: Float[Array, "*batch V"], sampling: Sampling, uniform: Float[Array, "*batch"]
) -> tuple[Int[Array, "*batch"], Float[Array, "*batch V"]]:
  """Returns a token and `adjusted_probs`, the law that it is drawn from.

  Args:
    logits: of any float dtype.
    sampling: the adjustment.
    uniform: in [0, 1), the token's quantile; not read where the law is argmax's.
  """
  probs = adjusted_probs(logits, sampling)
  token = argmax(logits) if sampling.greedy else sample(probs, uniform)
  return token.astype(jnp.int32), probs


def residual(
  target_probs: Float[Array, "*batch V"], draft_probs: Float[Array, "*batch V"]
) -> Float[Array, "*batch V"]:
  """Returns norm(max(0, p - q)), the law of the recovered token.

  Where p = q the residual has no mass and no draft is ever rejected there; up to
  rounding it is then defined as p. (Leviathan et al., section 2.3.)
  """
  excess = jnp.maximum(target_probs - draft_probs, 0.0)
  mass = excess.sum(axis=-1, keepdims=True)
  return jnp.where(mass > 0, excess / jnp.where(mass > 0, mass, 1.0), target_probs)


def acceptance_mass(
  target_probs: Float[Array, "*batch V"], draft_probs: Float[Array, "*batch V"]
) -> Float[Array, "*batch"]:
  """Returns beta = sum_x min(p(x), q(x)), the chance that a draft from q is accepted.

  (Leviathan et al., theorem 3.5.)
  """
  return jnp.minimum(target_probs, draft_probs).sum(axis=-1)


def sample(
  probs: Float[Array, "*batch V"], uniform: Float[Array, "*batch"]
) -> Int[Array, "*batch"]:
  """Returns the token at quantile `uniform` of `probs`; never one of no mass.

  The inverse of the cumulative law, in two levels (lanes of 128, then within one):
  shorter sums round less than one running sum over the vocabulary, and cost less.

  Args:
    probs: non-negative, of any positive total.
    uniform: in [0, 1).
  """
  lanes = _lanes(probs, 0.0)
  masses = lanes.sum(axis=-1)
  lane, quantile = _invert(masses, uniform * masses.sum(axis=-1))
  index, _ = _invert(_lane_at(lanes, lane), quantile)
  return lane * _LANES + index


def argmax(values: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
  """Returns the first index of the largest value, as `jnp.argmax` does.

  In two levels, like `sample`: XLA's argmax compares one number at a time on CPU, its
  maximum many.
  """
  lanes = _lanes(values, -jnp.inf)
  lane = jnp.argmax(lanes.max(axis=-1), axis=-1)
  return lane * _LANES + jnp.argmax(_lane_at(lanes, lane), axis=-1)


def _lanes(values, fill):
  padding = [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % _LANES)]
  padded = jnp.pad(values, padding, constant_values=fill)
  return padded.reshape(*values.shape[:-1], -1, _LANES)


def _lane_at(lanes, lane):
  return jnp.take_along_axis(lanes, lane[..., None, None], axis=-2)[..., 0, :]


def _invert(masses, quantile):
  """Returns the first index whose running sum exceeds `quantile`, and what is left."""
  sums = jnp.cumsum(masses, axis=-1)
  # Two sums of the same numbers may round apart: stay below this one's total.
  below_total = sums[..., -1] * (1 - jnp.finfo(jnp.float32).eps)
  quantile = jnp.minimum(quantile, below_total)
  index = jnp.sum(sums <= quantile[..., None], axis=-1)
  before = jnp.take_along_axis(sums - masses, index[..., None], axis=-1)[..., 0]
  return index, jnp.maximum(quantile - before, 0.0)
