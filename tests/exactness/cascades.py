"""Speculation on speculation, in float64: the oracle of `drafters.cascade`.

A hierarchy is a tuple of levels, the lowest first and the target last. A window of a
level is what it and those below it put out, each judged by the next; a whole decode is
the target's window.
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
    distribution: of its next token, given the output before; where `begins`, as
      (what was known when the window began, what is in the window).
    size: most tokens of a window.
    flush: whether a window ends with the first token that this level corrected.
    rule: how it judges what comes from below.
    begins: whether its distribution depends on where the window began.
  """

  distribution: ProbsFn
  size: int
  flush: bool = False
  rule: str = "token"
  begins: bool = False

  def after(self, known: Tokens) -> ProbsFn:
    """Its distribution in a window that begins after `known`, given the output."""
    if not self.begins:
      return self.distribution
    return lambda output: self.distribution((known, output[len(known) :]))


Levels = tuple[Level, ...]


def draws(levels: Levels) -> int:
  """How many decisions a window takes."""
  *below, top = levels
  return top.size * (iteration(tuple(below)) if below else 1)


def iteration(levels: Levels) -> int:
  """How many decisions it takes to draft a window of `levels` and to judge it."""
  return draws(levels) + levels[-1].size + 1


def window(world: World, levels: Levels, prefix: Tokens, room: int, names: Callable):
  """At most `room` tokens after `prefix`; decision i of turn t is names(t, i)."""
  *below, top = levels
  tokens, turn, goes_on = (), 0, True
  own = top.after(prefix)
  setting = Setting(own, own, None, (), min(room, top.size))
  while goes_on and len(tokens) < setting.max_length and not has_end(tokens, setting):
    known, called = (*prefix, *tokens), lambda i, t=turn: names(t, i)
    if below:
      left = setting.max_length - len(tokens) - 1
      new, is_whole = _judged(world, setting, top, tuple(below), known, left, called)
      goes_on = is_whole or not top.flush
    else:
      new = (world.draw(called(0), own(known)),)
    tokens, turn = cut((*tokens, *new), setting), turn + 1
  return tokens


def _judged(world, setting, top, below, known, room, names):
  """What one iteration of `top` adds, and whether it took all that was drafted."""
  each = iteration(below[:-1]) if below[:-1] else 1
  drafted = window(world, below, known, room, lambda t, i: names(t * each + i))
  draft, own = Draft({0: ()}, {}), below[-1].after(known)
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
  """Every path of whole decodes; decision i of iteration n is (n, i)."""
  whole = dataclasses.replace(levels[-1], size=max_length, flush=False)

  def decode(world):
    return window(world, (*levels[:-1], whole), (), max_length, lambda t, i: (t, i))

  return list(explore(decode))
