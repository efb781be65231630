"""Nested speculation in float64: the oracle of `drafters.cascade`.

A hierarchy is a tuple of levels, the lowest first and the target last. Each level
judges the tokens from below and puts out a window. A whole decode is the target's
window.
"""

import dataclasses
from collections.abc import Callable

from tests.exactness.enumeration import (
  Draft,
  ProbsFn,
  Setting,
  Tokens,
  World,
  cut,
  explore,
  has_end,
)
from tests.exactness.oracles import JUDGES


@dataclasses.dataclass(frozen=True)
class Level:
  """One model of a hierarchy.

  Attributes:
    distribution: the distribution of the next token, given the output so far; if
      `begins`, given (output before the window, tokens of the window).
    size: the most tokens of a window.
    flush: whether a window ends at this level's first correction.
    rule: the rule that judges tokens from below.
    begins: whether the distribution depends on the start of the window.
  """

  distribution: ProbsFn
  size: int
  flush: bool = False
  rule: str = "token"
  begins: bool = False

  def after(self, known: Tokens) -> ProbsFn:
    """Returns the distribution in a window that begins after `known`."""
    if not self.begins:
      return self.distribution
    return lambda output: self.distribution((known, output[len(known) :]))


Levels = tuple[Level, ...]


def draws(levels: Levels) -> int:
  """Returns the number of decisions per window."""
  *below, top = levels
  return top.size * (iteration(tuple(below)) if below else 1)


def iteration(levels: Levels) -> int:
  """Returns the number of decisions to draft and judge a window of `levels`."""
  return draws(levels) + levels[-1].size + 1


def window(world: World, levels: Levels, prefix: Tokens, room: int, names: Callable):
  """Returns up to `room` tokens after `prefix`; decision i of turn t is names(t, i)."""
  *below, top = levels
  tokens = ()
  turn = 0
  goes_on = True
  distribution = top.after(prefix)
  setting = Setting(distribution, distribution, None, (), min(room, top.size))
  while goes_on and len(tokens) < setting.max_length and not has_end(tokens, setting):
    output = (*prefix, *tokens)

    def called(i, turn=turn):
      return names(turn, i)

    if below:
      left = setting.max_length - len(tokens) - 1
      new, is_whole = _judged(world, setting, top, tuple(below), output, left, called)
      goes_on = is_whole or not top.flush
    else:
      new = (world.draw(called(0), distribution(output)),)
    tokens = cut((*tokens, *new), setting)
    turn += 1
  return tokens


def _judged(world, setting, top, below, known, room, names):
  """Returns the new tokens of one iteration of `top`, and whether all drafts passed."""
  decisions = iteration(below[:-1]) if below[:-1] else 1
  drafted = window(world, below, known, room, lambda t, i: names(t * decisions + i))
  draft = Draft({0: ()}, {})
  own = below[-1].after(known)
  for node in range(1, len(drafted) + 1):
    draft.paths[node] = drafted[:node]
    draft.distributions[node] = own((*known, *drafted[: node - 1]))
  first = draws(below) - 1
  judge = JUDGES[top.rule]
  last, distribution = judge(
    world, setting, known, draft, lambda node: names(first + node)
  )
  token = world.draw(names(first + below[-1].size + 1), distribution)
  return (*drafted[:last], token), last == len(drafted)


def paths(levels: Levels, max_length: int):
  """Returns all paths of whole decodes; decision i of iteration n is (n, i)."""
  target = dataclasses.replace(levels[-1], size=max_length, flush=False)

  def decode(world):
    return window(world, (*levels[:-1], target), (), max_length, lambda t, i: (t, i))

  return list(explore(decode))
