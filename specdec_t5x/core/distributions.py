"""Turns logits into the sampling distribution and samples from the distribution.

Standardised sampling (Leviathan et al., section 2.2): argmax, temperature, top-k and
nucleus sampling are all plain sampling from an adjusted distribution, in T5X's order:
temperature, top-k, top-p.

Shapes: L uniforms per decision, V vocabulary.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.knobs import (
  KnobError,
  invalid,
  is_finite,
  is_probability,
  is_whole,
)

# T5X treats lower temperatures as argmax, and so does this project.
MIN_TEMPERATURE = 1e-4
# Uniforms per token in the loop: enough for a vocabulary of 8^7 = 2,097,152 tokens.
LEVELS = 7
_BRANCHES = 8
LANES = 128


@dataclasses.dataclass(frozen=True)
class Sampling:
  """The way to sample, for target and draft alike.

  Attributes:
    temperature: the divisor of the logits; 0 is argmax.
    top_k: keep the k most likely tokens (and ties with the last); 0 keeps every token.
    top_p: keep the fewest most likely tokens that reach this mass; 0 keeps every token.
    coupled: draw each token with noise that depends on the position alone
      (`core.noise`). Samples are then equal with and without speculation.
  """

  temperature: float = 1.0
  top_k: int = 0
  top_p: float = 0.0
  coupled: bool = False

  def __post_init__(self):
    if not is_finite(self.temperature):
      expected = "a finite number of at least 0"
      fix = "0 is greedy decoding, 1 samples from the model's own distribution."
      raise invalid("temperature", expected, self.temperature, fix)
    if not is_whole(self.top_k, 0):
      expected = "a whole number of at least 0"
      raise invalid("top_k", expected, self.top_k, "0 means off.")
    if not is_probability(self.top_p):
      raise invalid("top_p", "between 0 and 1", self.top_p, "0 means off.")
    if self.top_k and self.top_p:
      raise KnobError(
        "At most one of {top_k} and {top_p} may be set, as in T5X, got {values}. Set "
        "{top_k} or {top_p} to 0.",
        values=(self.top_k, self.top_p),
      )

  @property
  def greedy(self) -> bool:
    """Whether the distribution is argmax's."""
    return self.temperature <= MIN_TEMPERATURE

  @property
  def certain(self) -> bool:
    """Whether a token is an argmax, of logits with or without noise."""
    return self.greedy or self.coupled


GREEDY = Sampling(temperature=0.0)
# (logits [.., V], sampling) -> the distribution that `sampling` draws from: the decoder
# chooses the implementation (`core.adjust`).
AdjustFn = Callable[[Float[Array, "*batch V"], Sampling], Float[Array, "*batch V"]]


def certain_log_prob(logits: Float[Array, "*batch V"]) -> Float[Array, "*batch"]:
  """Returns the log-probability of argmax under argmax's one-hot distribution: 0.

  The result is NaN if a logit is NaN or infinity. The maximum cannot detect a NaN,
  because YNNPACK's maximum drops NaN (jaxlib 0.10.2 on CPU).
  """
  # The sum is in float32, as half precision would overflow. `all` takes XLA on CPU four
  # times as long.
  return jnp.where(logits.sum(axis=-1, dtype=jnp.float32) < jnp.inf, 0.0, jnp.nan)


def draw(
  logits: Float[Array, "*batch V"],
  sampling: Sampling,
  uniforms: Float[Array, "*batch L"],
  adjust: AdjustFn,
) -> tuple[Int[Array, "*batch"], Float[Array, "*batch V"]]:
  """Returns a token drawn at a temperature above 0, and the token's distribution.

  The uniforms are those of `sample`, or those of `noise.race` for coupled draws.
  """
  probs = adjust(logits, sampling)
  if sampling.coupled:
    # Here alone: only coupled draws need the noise.
    from specdec_t5x.core.noise import race

    token = argmax(race(probs, uniforms))
  else:
    token = sample(probs, uniforms)
  return token.astype(jnp.int32), probs


def residual(
  target_probs: Float[Array, "*batch V"], draft_probs: Float[Array, "*batch V"]
) -> Float[Array, "*batch V"]:
  """Returns norm(max(0, p - q)), the distribution of the recovered token.

  If p = q, no draft is rejected, up to rounding, and the result is p. (Leviathan et
  al., section 2.3.)
  """
  excess = jnp.maximum(target_probs - draft_probs, 0.0)
  mass = excess.sum(axis=-1, keepdims=True)
  return jnp.where(mass > 0, excess / jnp.where(mass > 0, mass, 1.0), target_probs)


def sample(
  probs: Float[Array, "*batch V"], uniforms: Float[Array, "*batch L"]
) -> Int[Array, "*batch"]:
  """Returns a token drawn from `probs`, never a token without mass.

  A single uniform has too few values for a large vocabulary (docs/math.md,
  "Resolution"). Sampling descends a tree with eight branches per node and reads one
  uniform per level: the last chooses within a group of tokens, the second to last
  within a group of groups, and so on.

  Args:
    probs: non-negative, with any total above 1e-30. A value below the least normal
      float32 counts as no mass, since backends may flush the value to 0.
    uniforms: in [0, 1); surplus uniforms come first and are not read.

  Raises:
    ValueError: if there are fewer uniforms than levels.
  """
  levels = draws_per_token(probs.shape[-1])
  if uniforms.shape[-1] < levels:
    raise ValueError(
      f"A token of a vocabulary of {probs.shape[-1]} needs {levels} uniforms, got "
      f"{uniforms.shape[-1]}. Pass more, or raise core.distributions.LEVELS."
    )
  return _descend(probs, uniforms, float(jnp.finfo(jnp.float32).tiny))


def draws_per_token(vocab_size: int) -> int:
  """Returns the number of uniforms that `sample` reads, one per level of the tree.

  >>> [draws_per_token(size) for size in (8, 9, 32128, 250112)]
  [1, 2, 5, 6]
  """
  return next(n for n in itertools.count(1) if _BRANCHES**n >= vocab_size)


def _descend(masses, uniforms, least):
  """Returns the drawn index; a mass below `least` counts as 0."""
  *above, size = masses.shape
  if size <= _BRANCHES:
    return _invert(masses, uniforms[..., -1], least)
  padding = [(0, 0)] * len(above) + [(0, -size % _BRANCHES)]
  # Group i holds i, i + n, .. i + 7 n, so that the sums run over the major axis.
  groups = jnp.pad(masses, padding).reshape(*above, _BRANCHES, -1)
  # A group with a mass of 8 `least` has a member of at least `least`. The factor 2
  # allows for rounding.
  group = _descend(groups.sum(axis=-2), uniforms[..., :-1], 2 * _BRANCHES * least)
  members = jnp.take_along_axis(groups, group[..., None, None], axis=-1)[..., 0]
  return _invert(members, uniforms[..., -1], least) * groups.shape[-1] + group


def _invert(masses, uniform, least):
  """Returns the last index with mass and at most `uniform` of the total before it.

  The first index with mass always qualifies, as no mass precedes the first index.
  """
  indices = jnp.arange(masses.shape[-1])
  masses = jnp.where(masses >= least, masses, 0.0)
  is_before = indices < indices[:, None]
  before = jnp.where(is_before, masses[..., None, :], 0.0).sum(axis=-1)
  quantile = uniform * masses.sum(axis=-1)
  is_reached = (masses > 0) & (before <= quantile[..., None])
  return jnp.where(is_reached, indices, 0).max(axis=-1)


def argmax(values: Float[Array, "*batch V"]) -> Int[Array, "*batch"]:
  """Returns the first index of the largest value, as `jnp.argmax` does.

  On CPU XLA's argmax compares one number at a time, and XLA's maximum many.
  """
  return jax.lax.platform_dependent(
    values, cpu=_argmax_in_two_levels, default=functools.partial(jnp.argmax, axis=-1)
  )


def _argmax_in_two_levels(values):
  lanes = in_lanes(values, -jnp.inf)
  lane = jnp.argmax(lanes.max(axis=-1), axis=-1)
  lane_values = jnp.take_along_axis(lanes, lane[..., None, None], axis=-2)[..., 0, :]
  return lane * LANES + jnp.argmax(lane_values, axis=-1)


def in_lanes(values: Array, fill: float | int, multiple: int = 1) -> Array:
  """Reshapes [.., V] to [.., L, 128], padded with `fill`; `multiple` divides L."""
  surplus = -values.shape[-1] % (multiple * LANES)
  padding = [(0, 0)] * (values.ndim - 1) + [(0, surplus)]
  padded = jnp.pad(values, padding, constant_values=fill)
  return padded.reshape(*values.shape[:-1], -1, LANES)
