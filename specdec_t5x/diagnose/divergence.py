"""Where two greedy decodes of one model part, and whether rounding explains it.

Three scorings of the same tokens by the same model: the plain run's (one token a call),
the speculative run's (a block a call), and the whole pass (all tokens at once, without
a cache). In exact arithmetic they agree. In floating point they differ by rounding, for
products of other shapes sum in other orders, and a greedy decode turns on it where the
two best tokens are that close: a numerical tie.

That the gap is small beside the difference of the two runs' logits at the place where
they part proves nothing. Let the plain run take x by logits a, the other run y by b,
and d = max |a - b|. Then a_x - a_y >= 0 and b_y - b_x >= 0 add up to
(a_x - b_x) + (b_y - a_y) <= 2 d: both gaps are within 2 d, however wrong b may be. So
the question is whether d itself is rounding, and that is judged by what speculation has
no part in: how far the plain run's logits are from the whole pass's (`Rounding`).

Shapes: B rows, T positions, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

# Differences up to this many times the largest rounding elsewhere are rounding, too: a
# maximum over a few positions is below the maximum over more.
SLACK = 4.0

TIE, DIFFERENT = "tie", "DIFFERENT"


@flax.struct.dataclass
class Measures:
  """What is kept of the three scorings at each position.

  Attributes:
    distance: d, the largest difference of the plain and the speculative logits.
    rounding: the largest difference of the plain and the whole pass's logits.
    largest: the largest of the plain logits by magnitude.
    gaps: between the two best tokens, of the plain and the speculative logits.
    logits: of the plain and of the speculative run's token (last axis) by the plain,
      the speculative and the whole scoring.
    is_best: whether each run's token is the best by that run's own logits.
    are_numbers: whether all logits of all three are finite.
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
  """A quantity over many positions."""

  median: float
  largest: float


@dataclasses.dataclass(frozen=True)
class Difference:
  """The first place where an example's two outputs part.

  Attributes:
    example: its number, from 0.
    position: of the token in the output, from 0.
    tokens: the plain run's and the speculative run's; None where the run had ended.
    logits: of these two tokens, by the plain, the speculative and the whole scoring.
    gaps: between the two best tokens, by the plain and by the speculative logits.
    distance: the largest difference between those logits.
    limit: how large it may be and still be rounding.
    verdict: `TIE` or `DIFFERENT`.
    reason: for the verdict.
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
  """What comparing two runs has shown.

  Attributes:
    examples: how many there were.
    positions: where the runs' logits could be compared: up to and with the first
      difference of each example.
    identical: positions at which those logits are the same, bit for bit.
    distance: between the plain and the speculative logits.
    rounding: between the plain and the whole pass's logits, over the plain outputs.
    smallest_gap: between the two best tokens, of all plain logits.
    close: positions of the plain outputs whose gap is within twice the largest
      rounding: the only places where rounding can turn a greedy choice.
    beyond: compared positions whose logits differ by more than rounding; 0 where
      speculation is right.
    differences: the examples that part.
    not_numbers: the examples with NaN or infinity among the logits of an output, where
      nothing is compared.
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
    """How many of the differences are ties."""
    return sum(difference.verdict == TIE for difference in self.differences)

  @property
  def bugs(self) -> int:
    """How many of the differences rounding does not explain."""
    return len(self.differences) - self.ties


def measure(
  plain: Float[Array, "B T V"],
  speculative: Float[Array, "B T V"],
  whole: Float[Array, "B T V"],
  plain_tokens: Int[Array, "B T"],
  speculative_tokens: Int[Array, "B T"],
) -> Measures:
  """Returns what is kept of three scorings.

  Args:
    plain: the logits that each token of the plain run was chosen by.
    speculative: the same of the speculative run.
    whole: of a pass over the plain run's output.
    plain_tokens: the plain run's output.
    speculative_tokens: the speculative run's.
  """
  both = jnp.stack([plain_tokens, speculative_tokens], axis=-1)
  gap = lambda logits: -jnp.diff(jax.lax.top_k(logits, 2)[0], axis=-1)[..., 0]
  chosen = lambda logits: jnp.take_along_axis(logits, both, axis=-1)
  best = jnp.stack([plain.argmax(axis=-1), speculative.argmax(axis=-1)], axis=-1)
  return Measures(
    distance=jnp.abs(plain - speculative).max(axis=-1),
    rounding=jnp.abs(plain - whole).max(axis=-1),
    largest=jnp.abs(plain).max(axis=-1),
    gaps=jnp.stack([gap(plain), gap(speculative)], axis=-1),
    logits=jnp.stack([chosen(plain), chosen(speculative), chosen(whole)], axis=-2),
    is_best=both == best,
    # Not read off the maxima above: XLA's may drop NaN (`core.distributions`).
    are_numbers=jnp.isfinite(jnp.stack([plain, speculative, whole])).all(axis=(0, -1)),
  )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
  """Returns the first position at which two outputs differ; None where they do not.

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
    speculative: the speculative run's.
    measures: of all of them, as NumPy arrays, a row an example.
    epsilon: the distance from 1 to the next number that products tell from it.

  Returns:
    The report. A difference is a tie where each run took the best token by its own
    logits and those differ by rounding: by no more than `SLACK` times the largest
    rounding seen (or one epsilon of the largest logit), and by less than half of the
    digits, sqrt(epsilon) of the largest logit, whatever was seen.
  """
  firsts = [first_difference(*pair) for pair in zip(plain, speculative, strict=True)]
  position = np.arange(measures.distance.shape[1])
  in_plain, in_speculative = (
    position < np.array([len(output) for output in run])[:, None]
    for run in (plain, speculative)
  )
  is_lost = ~measures.are_numbers & (in_plain | in_speculative)
  in_plain = in_plain & measures.are_numbers
  in_both = in_plain & in_speculative
  last = np.array([position.size if first is None else first for first in firsts])
  compared = in_both & (position <= last[:, None])
  rounding, distance = measures.rounding[in_plain], measures.distance[compared]
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
  """Returns how far apart two scorings of each position may be."""
  seen = np.maximum(SLACK * rounding, epsilon * measures.largest)
  return np.minimum(seen, np.sqrt(epsilon) * measures.largest)


def _spread(values):
  if not values.size:
    return Spread(0.0, 0.0)
  return Spread(float(np.median(values)), float(values.max()))


def _judge(example, position, outputs, measures, limit) -> Difference:
  at = lambda output: int(output[position]) if position < len(output) else None
  tokens = tuple(map(at, outputs))
  # A run that filled its room has no logits beyond it.
  place = (example, min(position, measures.distance.shape[1] - 1))
  distance, allowed = float(measures.distance[place]), float(limit[place])
  is_best = measures.is_best[place]
  if not measures.are_numbers[place]:
    reason = "the logits are not numbers"
  elif None in tokens:
    reason = "one run had ended, without an end of sequence"
  elif not is_best.all():
    run = "speculative" if is_best[0] else "plain"
    reason = f"the {run} run's token is not the best by its own logits"
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
