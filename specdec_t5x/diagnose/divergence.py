"""Finds the first difference of two greedy decodes, and judges if rounding explains it.

A model scores the same tokens in three ways: plain (one token per call), speculative (a
block per call), and whole (all tokens in one pass without a cache). In exact arithmetic
the three scorings agree. In floating point the scorings differ by rounding, because
products of different shapes sum in different orders. Rounding changes a greedy choice
if the two best tokens are closer than the rounding: a numerical tie.

A small gap relative to the difference of the two runs' logits proves nothing. Let the
plain run choose x by logits a, the speculative run y by logits b, and let
d = max |a - b|. Then a_x - a_y >= 0 and b_y - b_x >= 0 add up to
(a_x - b_x) + (b_y - a_y) <= 2 d: both gaps are within 2 d, however wrong b may be. So
the question is whether d is rounding. The reference is independent of speculation: the
difference of plain and whole logits (`Measures.rounding`).

Shapes: B rows, T positions, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Differences of up to SLACK times the largest observed rounding count as rounding: the
# maximum over few positions is below the maximum over many positions.
SLACK = 4.0

TIE = "tie"
DIFFERENT = "DIFFERENT"


@flax.struct.dataclass
class Measures:
  """Summary of the three scorings at each position.

  Attributes:
    distance: d, the largest difference of plain and speculative logits.
    rounding: the largest difference of plain and whole logits.
    largest: the largest magnitude of the plain logits.
    gaps: the gap between the two best tokens, for plain and speculative logits.
    logits: the plain, speculative and whole logits (second last axis) of the plain and
      the speculative run's token (last axis).
    is_best: whether each run's token has the run's largest logit.
    are_numbers: whether the logits of all three scorings are finite.
  """

  distance: Float[Array, "B T"]
  rounding: Float[Array, "B T"]
  largest: Float[Array, "B T"]
  gaps: Float[Array, "B T 2"]
  logits: Float[Array, "B T 3 2"]
  is_best: Bool[Array, "B T 2"]
  are_numbers: Bool[Array, "B T"]


@dataclasses.dataclass(frozen=True)
class Spread:
  """The median and the maximum of a quantity over positions."""

  median: float
  largest: float


@dataclasses.dataclass(frozen=True)
class Difference:
  """The first difference of an example's two outputs.

  Attributes:
    example: the example's number, from 0.
    position: the token's position in the output, from 0.
    tokens: the plain and the speculative run's token; None if the run had ended.
    logits: the plain, speculative and whole logits of the two tokens.
    gaps: the gap between the two best tokens, for plain and speculative logits.
    distance: the largest difference of plain and speculative logits.
    limit: the largest distance that counts as rounding.
    verdict: `TIE` or `DIFFERENT`.
    reason: the reason for the verdict.
  """

  example: int
  position: int
  tokens: tuple[int | None, int | None]
  logits: tuple[tuple[float, float], ...]
  gaps: tuple[float, float]
  distance: float
  limit: float
  verdict: str
  reason: str


@dataclasses.dataclass(frozen=True)
class Report:
  """The result of a comparison of two runs.

  Attributes:
    examples: the number of examples.
    positions: the number of compared positions: the positions up to the first
      difference of each example, the difference included.
    identical: the number of compared positions with equal logits, bit for bit.
    distance: the difference of plain and speculative logits.
    rounding: the difference of plain and whole logits, over the plain outputs.
    smallest_gap: the smallest gap between the two best tokens of the plain logits.
    close: the number of positions of the plain outputs with a gap within twice the
      largest rounding. Rounding can change a greedy choice at no other position.
    beyond: the number of compared positions with logits that differ by more than
      rounding; 0 if speculation is right.
    differences: the first difference of each example with different outputs.
    not_numbers: the examples with NaN or infinite logits in an output. Positions
      without finite logits are not compared.
  """

  examples: int
  positions: int
  identical: int
  distance: Spread
  rounding: Spread
  smallest_gap: float
  close: int
  beyond: int
  differences: tuple[Difference, ...]
  not_numbers: tuple[int, ...] = ()

  @property
  def ties(self) -> int:
    """The number of differences that are ties."""
    return sum(difference.verdict == TIE for difference in self.differences)

  @property
  def bugs(self) -> int:
    """The number of differences that rounding does not explain."""
    return len(self.differences) - self.ties


def measure(
  plain: Float[Array, "B T V"],
  speculative: Float[Array, "B T V"],
  whole: Float[Array, "B T V"],
  plain_tokens: Int[Array, "B T"],
  speculative_tokens: Int[Array, "B T"],
) -> Measures:
  """Returns the summary of three scorings.

  Args:
    plain: the logits that chose each token of the plain run.
    speculative: the logits that chose each token of the speculative run.
    whole: the logits of a pass over the plain run's output.
    plain_tokens: the plain run's output.
    speculative_tokens: the speculative run's output.
  """
  both = jnp.stack([plain_tokens, speculative_tokens], axis=-1)

  def gap(logits):
    return -jnp.diff(jax.lax.top_k(logits, 2)[0], axis=-1)[..., 0]

  def chosen(logits):
    return jnp.take_along_axis(logits, both, axis=-1)

  best = jnp.stack([plain.argmax(axis=-1), speculative.argmax(axis=-1)], axis=-1)
  return Measures(
    distance=jnp.abs(plain - speculative).max(axis=-1),
    rounding=jnp.abs(plain - whole).max(axis=-1),
    largest=jnp.abs(plain).max(axis=-1),
    gaps=jnp.stack([gap(plain), gap(speculative)], axis=-1),
    logits=jnp.stack([chosen(plain), chosen(speculative), chosen(whole)], axis=-2),
    is_best=both == best,
    # The maxima above can't detect NaN: XLA's maxima may drop NaN
    # (`core.distributions`).
    are_numbers=jnp.isfinite(jnp.stack([plain, speculative, whole])).all(axis=(0, -1)),
  )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
  """Returns the first position at which two outputs differ; None for equal outputs.

  >>> first_difference([5, 6, 1], [5, 7, 8, 1])
  1
  >>> first_difference([5, 6], [5, 6, 1])
  2
  """
  for position, (a, b) in enumerate(zip(one, other, strict=False)):
    if a != b:
      return position
  return None if len(one) == len(other) else min(len(one), len(other))


def diagnose(
  plain: Sequence[Sequence[int]],
  speculative: Sequence[Sequence[int]],
  measures: Measures,
  epsilon: float,
) -> Report:
  """Judges every first difference.

  Args:
    plain: the plain run's outputs, without padding.
    speculative: the speculative run's outputs, without padding.
    measures: the measures of all examples, as NumPy arrays with a row per example.
    epsilon: the distance from 1 to the next number that products distinguish from 1.

  Returns:
    The report. A difference is a tie if each run chose the token with the run's largest
    logit, and the runs' logits differ by rounding: by at most `SLACK` times the largest
    rounding in `measures` or one epsilon of the largest logit, whichever is larger, and
    in any case by at most half of the digits, sqrt(epsilon) of the largest logit.
  """
  firsts = [first_difference(a, b) for a, b in zip(plain, speculative, strict=True)]
  position = np.arange(measures.distance.shape[1])
  in_plain = position < np.array([len(output) for output in plain])[:, None]
  in_speculative = position < np.array([len(output) for output in speculative])[:, None]
  is_lost = ~measures.are_numbers & (in_plain | in_speculative)
  in_plain = in_plain & measures.are_numbers
  in_both = in_plain & in_speculative
  last = np.array([position.size if first is None else first for first in firsts])
  compared = in_both & (position <= last[:, None])
  rounding = measures.rounding[in_plain]
  distance = measures.distance[compared]
  limit = _limit(measures, rounding.max(initial=0.0), epsilon)
  gaps = measures.gaps[..., 0][in_plain]
  differences = (
    _judge(example, first, (plain[example], speculative[example]), measures, limit)
    for example, first in enumerate(firsts)
    if first is not None
  )
  return Report(
    examples=len(plain),
    positions=int(compared.sum()),
    identical=int((distance == 0).sum()),
    distance=_spread(distance),
    rounding=_spread(rounding),
    smallest_gap=float(gaps.min(initial=np.inf)),
    close=int((gaps <= 2 * rounding.max(initial=0.0)).sum()),
    beyond=int((measures.distance > limit)[compared].sum()),
    differences=tuple(differences),
    not_numbers=tuple(np.flatnonzero(is_lost.any(axis=1)).tolist()),
  )


def _limit(measures, rounding, epsilon):
  """Returns the largest difference at each position that counts as rounding."""
  limit = np.maximum(SLACK * rounding, epsilon * measures.largest)
  return np.minimum(limit, np.sqrt(epsilon) * measures.largest)


def _spread(values):
  if not values.size:
    return Spread(0.0, 0.0)
  return Spread(float(np.median(values)), float(values.max()))


def _judge(example, position, outputs, measures, limit) -> Difference:
  tokens = tuple(
    int(output[position]) if position < len(output) else None for output in outputs
  )
  # A run that reached the maximum length has no logits beyond the last position.
  place = (example, min(position, measures.distance.shape[1] - 1))
  distance = float(measures.distance[place])
  allowed = float(limit[place])
  is_best = measures.is_best[place]
  if not measures.are_numbers[place]:
    reason = "the logits are not numbers"
  elif None in tokens:
    reason = "one run had ended, without an end of sequence"
  elif not is_best.all():
    run = "speculative" if is_best[0] else "plain"
    reason = f"the {run} run's token is not the best token of the run's logits"
  elif distance > allowed:
    reason = f"the runs' logits differ by more than rounding ({allowed:.2g})"
  else:
    reason = ""
  return Difference(
    example=example,
    position=position,
    tokens=tokens,
    logits=tuple(tuple(map(float, pair)) for pair in measures.logits[place]),
    gaps=tuple(map(float, measures.gaps[place])),
    distance=distance,
    limit=allowed,
    verdict=DIFFERENT if reason else TIE,
    reason=reason or "both tokens are best up to rounding",
  )
