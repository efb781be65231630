"""Which hierarchy of drafts is fastest: its seconds a token, and the best one.

A window's tokens have the distribution of the network that judged them last, whatever
is below. So the tokens a call of the target are those of that network's own draft, and
what is below changes the time of a window alone (docs/math.md, "Hierarchies"). With
s(k) the chance that at least k tokens of a draft stand, a call gives 1 + s(1) + .. +
s(g) tokens, and a window of T tokens takes h(T) calls of the network that fills it,

  h(T) = 1 + sum_n P(n tokens in the first call) h(T - n),  h(0) = 0.

The best hierarchy is a shortest path over (network, tokens of its window): windows
shrink from level to level, so there is no cycle. (Globerson et al., arXiv 2510.19705,
reduce theirs to a generalised shortest path, too.)

Times are those of whole iterations of one network above one draft: an iteration takes
more than the calls in it.

Shapes: G most tokens of a draft.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from specdec_t5x.core.checks import is_whole


@dataclasses.dataclass(frozen=True)
class Plan:
  """A hierarchy and what it is expected to take.

  Attributes:
    levels: (name, tokens of its window) of each draft, the lowest first; none is plain
      decoding.
    seconds: for a token of the target.
    tokens_per_call: of the target.
  """

  levels: tuple[tuple[str, int], ...]
  seconds: float
  tokens_per_call: float


@dataclasses.dataclass(frozen=True)
class Measured:
  """What plans follow from; G is the most tokens of a draft.

  Attributes:
    target: its name.
    plain: seconds of a token that the target decodes by itself.
    drafts: by name, seconds of a draft of 1, 2, .. G tokens, nothing below it.
    iterations: by (judge, name), seconds of a whole iteration with such a draft.
    survival: by (judge, name), the chance that at least 1, 2, .. G tokens stand.
  """

  target: str
  plain: float
  drafts: Mapping[str, Sequence[float]]
  iterations: Mapping[tuple[str, str], Sequence[float]]
  survival: Mapping[tuple[str, str], Sequence[float]]

  def __post_init__(self):
    names = {name for _, name in self.survival}
    given = (self.iterations, self.survival, self.drafts)
    lengths = {len(seconds) for each in given for seconds in each.values()}
    same = self.iterations.keys() == self.survival.keys() and names == set(self.drafts)
    if len(lengths) > 1 or not same:
      raise ValueError(
        "Expected drafts of 1 to G tokens of every name and pair, got "
        f"{sorted(self.drafts)} with {sorted(self.iterations)} and "
        f"{sorted(self.survival)}, of lengths {sorted(lengths)}."
      )


def survival(alpha: float, gamma: int) -> Float[np.ndarray, "G"]:
  """Returns alpha^k: how tokens stand that do so independently, with one chance."""
  return alpha ** np.arange(1, gamma + 1)


def tokens_per_call(stand: Sequence[float], gamma: int) -> float:
  """Returns 1 + s(1) + .. + s(gamma)."""
  return 1.0 + float(np.sum(stand[:gamma]))


def calls_per_window(stand: Sequence[float], gamma: int, window: int) -> float:
  """Returns h(window): calls that fill a window with drafts of at most gamma tokens.

  A draft is cut to what is left but one, which the judge adds.

  Args:
    stand: s(1), s(2), ..
    gamma: most tokens of a draft.
    window: tokens to gather.
  """
  calls = [0.0]
  for left in range(1, window + 1):
    drafted = min(gamma, left - 1)
    at_least = np.concatenate([[1.0], stand[:drafted], [0.0]])
    # k drafted tokens stand, and one follows.
    chances = at_least[:-1] - at_least[1:]
    after = [calls[left - k - 1] for k in range(drafted + 1)]
    calls.append(1.0 + float(chances @ np.array(after)))
  return calls[window]


def window_seconds(measured: Measured, levels: tuple[tuple[str, int], ...]) -> float:
  """Returns how long the highest of some levels takes to fill its window."""
  name, window = levels[-1]
  if len(levels) == 1:
    return measured.drafts[name][window - 1]
  below, gamma = levels[-2]
  calls = calls_per_window(measured.survival[name, below], gamma, window)
  return calls * iteration_seconds(measured, name, levels[:-1])


def iteration_seconds(
  measured: Measured, judge: str, levels: tuple[tuple[str, int], ...]
) -> float:
  """Returns the time of an iteration of `judge` with the window of these levels.

  It was measured with the highest level alone; what is below changes its draft.
  (A middle network reads a token more, `Context.behind`, which is not counted.)
  """
  name, window = levels[-1]
  alone = measured.drafts[name][window - 1]
  beside = measured.iterations[judge, name][window - 1] - alone
  return beside + window_seconds(measured, levels)


def plan_of(measured: Measured, levels: tuple[tuple[str, int], ...]) -> Plan:
  """Returns the expected time of a hierarchy of these levels."""
  if not levels:
    return Plan((), measured.plain, 1.0)
  name, gamma = levels[-1]
  tokens = tokens_per_call(measured.survival[measured.target, name], gamma)
  seconds = iteration_seconds(measured, measured.target, levels)
  return Plan(levels, seconds / tokens, tokens)


def best_plans(measured: Measured, depth: int, gamma: int) -> list[Plan]:
  """Returns the fastest hierarchy of 0, 1, .. drafts, as far as there are any.

  Args:
    measured: what calls take and how drafts stand.
    depth: most levels below the target; 0 is plain decoding.
    gamma: most tokens of a window.

  Raises:
    ValueError: where depth or gamma is no number of levels or of tokens.
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
  # The fastest way to each (network, window) with so many levels.
  ways = {(name, size): ((name, size),) for name in names for size in sizes}
  for _ in range(depth):
    tops = [ways[n, s] for n in below(measured.target) for s in sizes if (n, s) in ways]
    if tops:
      found = (plan_of(measured, levels) for levels in tops)
      plans.append(min(found, key=lambda plan: plan.seconds))
    deeper = {}
    for name in names:
      for size in sizes:
        lower = [(d, few) for d in below(name) for few in range(1, size)]
        longer = [(*ways[way], (name, size)) for way in lower if way in ways]
        if longer:
          deeper[name, size] = min(longer, key=seconds)
    ways = deeper
  return plans
