"""The predicted seconds a token of a hierarchy of drafts, and the fastest hierarchy.

The tokens of a window have the distribution of the last network that judged them. So
the highest draft alone decides the tokens per call of the target. Lower levels change
only the time of a window (docs/math.md, "Hierarchies"). If s(k) is the chance that at
least k tokens of a draft are accepted, a call gives 1 + s(1) + .. + s(g) tokens, and a
window of T tokens takes h(T) calls of the network that fills the window,

  h(T) = 1 + sum_n P(n tokens in the first call) h(T - n),  h(0) = 0.

The best hierarchy is a shortest path over (network, window). Windows shrink from level
to level, so there is no cycle. (The hierarchies of Globerson et al., arXiv 2510.19705,
also reduce to a generalised shortest path.)

Times are of whole iterations of a network above a single draft: an iteration takes
longer than its calls.

Shapes: G most tokens of a draft.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from specdec_t5x.core.knobs import is_whole


@dataclasses.dataclass(frozen=True)
class Plan:
  """A hierarchy and its expected time."""

  # (name, window) of every draft, the lowest first; () is plain decoding.
  levels: tuple[tuple[str, int], ...]
  seconds: float  # Expected time per token of the target.
  tokens_per_call: float  # Expected tokens per call of the target.


@dataclasses.dataclass(frozen=True)
class Measured:
  """The measurements for planning; G is the longest draft."""

  target: str  # Name of the target.
  plain: float  # Seconds of a token in plain decoding.
  # By name, seconds of a draft of 1, 2, .. G tokens without lower levels.
  drafts: Mapping[str, Sequence[float]]
  # By (judge, name), seconds of a whole iteration with that draft.
  iterations: Mapping[tuple[str, str], Sequence[float]]
  # By (judge, name), the chance that at least 1, 2, .. G tokens are accepted.
  survival: Mapping[tuple[str, str], Sequence[float]]

  def __post_init__(self):
    names = {name for _, name in self.survival}
    groups = (self.iterations, self.survival, self.drafts)
    lengths = {len(seconds) for group in groups for seconds in group.values()}
    same_pairs = self.iterations.keys() == self.survival.keys()
    same_names = names == set(self.drafts)
    if len(lengths) > 1 or not (same_pairs and same_names):
      raise ValueError(
        "Expected times and acceptance of 1 to G tokens for every draft and pair, got "
        f"{sorted(self.drafts)} with {sorted(self.iterations)} and "
        f"{sorted(self.survival)}, of lengths {sorted(lengths)}."
      )


def survival(alpha: float, gamma: int) -> Float[np.ndarray, "G"]:
  """Returns alpha^k, the survival if tokens are accepted independently with alpha."""
  return alpha ** np.arange(1, gamma + 1)


def tokens_per_call(stand: Sequence[float], gamma: int) -> float:
  """Returns 1 + s(1) + .. + s(gamma)."""
  return 1.0 + float(np.sum(stand[:gamma]))


def calls_per_window(stand: Sequence[float], gamma: int, window: int) -> float:
  """Returns h(window), the calls that fill a window with drafts of up to gamma tokens.

  A draft is cut to the room in the window minus the token that the judge adds.

  Args:
    stand: s(1), s(2), ..
    gamma: longest draft.
    window: tokens of the window.
  """
  calls = [0.0]
  for left in range(1, window + 1):
    drafted = min(gamma, left - 1)
    at_least = np.concatenate([[1.0], stand[:drafted], [0.0]])
    # k drafted tokens are accepted, and the judge's token follows.
    chances = at_least[:-1] - at_least[1:]
    after = [calls[left - k - 1] for k in range(drafted + 1)]
    calls.append(1.0 + float(chances @ np.array(after)))
  return calls[window]


def window_seconds(measured: Measured, levels: tuple[tuple[str, int], ...]) -> float:
  """Returns the time in which the highest level fills a window."""
  name, window = levels[-1]
  if len(levels) == 1:
    return measured.drafts[name][window - 1]
  below, gamma = levels[-2]
  calls = calls_per_window(measured.survival[name, below], gamma, window)
  return calls * iteration_seconds(measured, name, levels[:-1])


def iteration_seconds(
  measured: Measured, judge: str, levels: tuple[tuple[str, int], ...]
) -> float:
  """Returns the time of an iteration of `judge` with the window of the levels.

  The iteration was measured with the highest level alone. Lower levels change the time
  of the draft. (The extra token that a middle network reads, `Context.behind`, is not
  counted.)
  """
  name, window = levels[-1]
  alone = measured.drafts[name][window - 1]
  beside = measured.iterations[judge, name][window - 1] - alone
  return beside + window_seconds(measured, levels)


def plan_of(measured: Measured, levels: tuple[tuple[str, int], ...]) -> Plan:
  """Returns the plan of a hierarchy with the expected time."""
  if not levels:
    return Plan((), measured.plain, 1.0)
  name, gamma = levels[-1]
  tokens = tokens_per_call(measured.survival[measured.target, name], gamma)
  seconds = iteration_seconds(measured, measured.target, levels)
  return Plan(levels, seconds / tokens, tokens)


def best_plans(measured: Measured, depth: int, gamma: int) -> list[Plan]:
  """Returns the fastest hierarchies of 0, 1, .. drafts, as far as they exist.

  Args:
    measured: times and acceptance.
    depth: most levels below the target; 0 is plain decoding.
    gamma: largest window.

  Raises:
    ValueError: if depth is not a whole number >= 0 or gamma not a whole number >= 1.
  """
  if not (is_whole(depth, 0) and is_whole(gamma, 1)):
    raise ValueError(
      f"Expected a depth of at least 0 and a gamma of at least 1, got {depth!r} and "
      f"{gamma!r}."
    )

  def below(judge):
    return [drafter for j, drafter in measured.survival if j == judge]

  def seconds(levels):
    return window_seconds(measured, levels)

  names = measured.drafts
  sizes = range(1, gamma + 1)
  plans = [plan_of(measured, ())]
  # The fastest levels that end in a (network, window), at the depth of the loop.
  ways = {(name, size): ((name, size),) for name in names for size in sizes}
  for _ in range(depth):
    tops = [ways[n, s] for n in below(measured.target) for s in sizes if (n, s) in ways]
    if tops:
      candidates = (plan_of(measured, levels) for levels in tops)
      plans.append(min(candidates, key=lambda plan: plan.seconds))
    deeper = {}
    for name in names:
      for size in sizes:
        lower = [(d, few) for d in below(name) for few in range(1, size)]
        longer = [(*ways[way], (name, size)) for way in lower if way in ways]
        if longer:
          deeper[name, size] = min(longer, key=seconds)
    ways = deeper
  return plans
