"""The exact probs of what speculative decoding puts out, by enumeration in float64.

A random algorithm is written as a plain function of a `World`, which it asks for every
random outcome; `explore` runs it once for each combination of outcomes that can happen.
`iterate` is one iteration of speculative decoding written that way, on distributions
that are functions of the prefix, and `output_probs` the distribution of whole outputs.
Nothing here shares code with the decoding that it judges: NumPy and Python alone.

Each path also says in which cell every uniform lies: one for an accept test, one a
level of the tree for a token that is drawn. Driven with uniforms from there, the
compiled rules and the compiled loop must take the same path; then their distribution is
the enumerated one (tests/exactness/).

Shapes: V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

Tokens = tuple[int, ...]
ProbsFn = Callable[[Tokens], Float[np.ndarray, "V"]]

BRANCHES = 8  # Of the tree that a token is drawn from.


class Cell(NamedTuple):
  """Where a uniform lies on a path: in [low, high) of [0, 1).

  Attributes:
    low: the lower edge.
    high: the upper edge.
    reached: the probability that the path comes to this uniform at all.
  """

  low: float
  high: float
  reached: float


class World:
  """The outcomes of one run: as prescribed at first, then the first possible ones.

  Attributes:
    probability: of all outcomes so far.
    cells: by the decision's name, where its uniforms lie.
    untaken: the choices that lead to the runs not taken.
  """

  def __init__(self, choices: tuple[int, ...] = ()):
    self._prescribed, self._taken = choices, ()
    self.probability, self.cells, self.untaken = 1.0, {}, []

  def draw(self, name: Any, distribution: Float[np.ndarray, "V"]) -> int:
    """Returns a token drawn from `distribution`, by the uniforms called `name`."""
    possible = _possible(np.asarray(distribution, float).tobytes())
    token, edges = possible[self._choose(len(possible))]
    self._note(name, *edges)
    return token

  def flip(self, name: Any, chance: float) -> bool:
    """Returns whether something of this chance happened: uniform < chance."""
    outcomes = [o for o, c in ((True, chance), (False, 1 - chance)) if c > 0]
    happened = outcomes[self._choose(len(outcomes))]
    self._note(name, (0.0, chance) if happened else (chance, 1.0))
    return happened

  def _choose(self, count):
    """Returns which of `count` outcomes comes about; keeps the others for later."""
    depth = len(self._taken)
    if depth < len(self._prescribed):
      choice = self._prescribed[depth]
    else:
      choice = 0
      self.untaken += [(*self._taken, other) for other in range(1, count)]
    self._taken += (choice,)
    return choice

  def _note(self, name, *edges):
    self.cells[name] = ()
    for low, high in edges:
      self.cells[name] += (Cell(low, high, self.probability),)
      self.probability *= high - low


@functools.cache
def _possible(data: bytes) -> list[tuple[int, list[tuple[float, float]]]]:
  """Returns the tokens that a distribution's bytes give a probability, with `edges_of`.

  Many paths draw from the same few distributions, so this is kept.
  """
  distribution = np.frombuffer(data)
  # Less than this would leave its cell without width.
  possible = np.flatnonzero(distribution > np.finfo(float).eps * distribution.sum())
  return [(token, edges_of(token, distribution)) for token in possible.tolist()]


def edges_of(
  token: int, distribution: Float[np.ndarray, "V"]
) -> list[tuple[float, float]]:
  """Returns between which numbers each level's uniform leads to `token`, top first.

  A distribution of more than `BRANCHES` tokens is cut into n groups, i, i + n, i + 2 n,
  ..; the group is drawn by the levels above, the token within it by the last.
  """
  if distribution.size <= BRANCHES:
    return [_cell_edges(token, distribution)]
  table = np.pad(distribution, (0, -distribution.size % BRANCHES)).reshape(BRANCHES, -1)
  place, group = divmod(token, table.shape[1])
  return [*edges_of(group, table.sum(axis=0)), _cell_edges(place, table[:, group])]


def _cell_edges(token, distribution):
  edges = np.concatenate([[0.0], np.cumsum(distribution)]) / distribution.sum()
  return float(edges[token]), float(edges[token + 1])


@dataclasses.dataclass(frozen=True)
class Path:
  """One way that a run can go.

  Attributes:
    result: of the run.
    probability: of this way.
    cells: where the uniforms of each decision lie, by its name, in the order that
      they are read; those never used are not named.
  """

  result: Any
  probability: float
  cells: dict[Any, tuple[Cell, ...]]


def explore(program: Callable[[World], Any]) -> Iterator[Path]:
  """Yields every path of `program` that has a probability; they sum to 1."""
  pending = [()]
  while pending:
    world = World(pending.pop())
    result = program(world)
    pending += world.untaken
    yield Path(result, world.probability, world.cells)


@dataclasses.dataclass(frozen=True)
class Setting:
  """Speculative decoding with distributions that are functions of the prefix.

  Attributes:
    target: p.
    draft: q.
    judge: the rule, one of `oracles.JUDGES`.
    tree: the parents of nodes 1, 2, .. of a draft; node 0 is what is known.
    max_length: room for the output.
    eos_id: the token that ends it, or all such tokens.
    siblings: how the children of a node are drawn: 'independent', 'distinct' (without
      replacement) or the 'likeliest' by q, which are certain.
    stops: whether a draft gets no further token, given the output before it and its
      tokens so far.
    given: from these two to what `draft` is a function of.
  """

  target: ProbsFn
  draft: ProbsFn
  judge: Callable
  tree: tuple[int, ...]
  max_length: int
  eos_id: int | Tokens = 1
  siblings: str = "independent"
  stops: Callable[[Tokens, Tokens], bool] = lambda prefix, draft: False
  given: Callable[[Tokens, Tokens], Any] = lambda prefix, draft: (*prefix, *draft)


@dataclasses.dataclass(frozen=True)
class Draft:
  """Drafted nodes that count.

  Attributes:
    paths: of each one, the tokens from the root, node 0, which has none, to it.
    distributions: q of each one's token, given its path and its earlier siblings.
  """

  paths: dict[int, Tokens]
  distributions: dict[int, Float[np.ndarray, "V"]]

  @property
  def tokens(self) -> Tokens:
    """The tokens of a chain."""
    return max(self.paths.values(), key=len)


def iterate(world: World, setting: Setting, prefix: Tokens, names=lambda i: (i,)):
  """Runs one iteration after `prefix`.

  Args:
    world: decides every outcome.
    setting: what is decoded, and how.
    prefix: the output so far.
    names: the name of this iteration's i-th decision, in the order of the compiled
      loop: one a drafted node, one an accept test, one for the next token.

  Returns:
    The draft, the last accepted node, the next token, and the output after it.
  """
  draft, size = _draft(world, setting, prefix, names), len(setting.tree)

  def of_node(node):
    return names(size + node - 1)

  last, distribution = setting.judge(world, setting, prefix, draft, of_node)
  next_token = world.draw(names(2 * size), distribution)
  output = cut((*prefix, *draft.paths[last], next_token), setting)
  return draft, last, next_token, output


def cut(output: Tokens, setting: Setting) -> Tokens:
  """Returns the output up to its end."""
  ends = [place for place, token in enumerate(output) if is_end(token, setting)]
  return output[: ends[0] + 1] if ends else output


def is_end(token: int, setting: Setting) -> bool:
  """Returns whether a token ends the output."""
  ends = setting.eos_id
  return token in ends if isinstance(ends, tuple) else token == ends


def _draft(world, setting, prefix, names):
  # The target always adds a token of its own, so the draft leaves room for it.
  room = setting.max_length - len(prefix) - 1
  draft = Draft({0: ()}, {})
  for node, parent in enumerate(setting.tree, 1):
    path = draft.paths.get(parent)
    if path is None or len(path) >= room or has_end(path, setting):
      continue
    distribution = _probs_of_sibling(setting, prefix, path, draft, parent)
    if setting.stops(prefix, path) or not distribution.any():
      continue
    draft.paths[node] = (*path, world.draw(names(node - 1), distribution))
    draft.distributions[node] = distribution
  return draft


def _probs_of_sibling(setting, prefix, path, draft, parent):
  """Returns q of the next child of a node; nothing where no token is left."""
  distribution = setting.draft(setting.given(prefix, path))
  if setting.siblings == "independent":
    return distribution
  before = [n for n in draft.distributions if setting.tree[n - 1] == parent]
  left = distribution.copy()
  left[[draft.paths[n][-1] for n in before]] = 0.0
  if setting.siblings == "likeliest":
    left = np.eye(distribution.size)[np.argmax(left)] * left.any()
  return left / left.sum() if left.any() else left


def decode(world: World, setting: Setting) -> Tokens:
  """Runs iterations until the output ends; decision i of iteration n is (n, i)."""
  output, number = (), 0
  while not has_ended(output, setting):

    def named(i, number=number):
      return (number, i)

    output = iterate(world, setting, output, named)[-1]
    number += 1
  return output


def has_end(tokens: Tokens, setting: Setting) -> bool:
  """Returns whether one of the tokens ends the output."""
  return any(is_end(token, setting) for token in tokens)


def has_ended(output: Tokens, setting: Setting) -> bool:
  """Returns whether nothing follows `output`."""
  return has_end(output, setting) or len(output) == setting.max_length


def output_probs(setting: Setting) -> dict[Tokens, float]:
  """Returns the probability of each output of speculative decoding.

  An iteration depends on the prefix alone, so the prefixes are taken shortest first,
  each with the probability of ever being reached at an iteration's end.
  """

  def step(prefix):
    return (
      (path.result[-1], path.probability)
      for path in explore(lambda world: iterate(world, setting, prefix))
    )

  return absorb(setting, step)


def target_probs(setting: Setting) -> dict[Tokens, float]:
  """Returns the probability of each output of the target alone."""

  def step(prefix):
    distribution = setting.target(prefix)
    return (
      ((*prefix, int(token)), distribution[token])
      for token in np.flatnonzero(distribution)
    )

  return absorb(setting, step)


def prefixes(setting: Setting) -> list[Tokens]:
  """Returns every prefix after which an iteration can begin."""
  found, pending = [], [()]
  while pending:
    prefix = pending.pop()
    found.append(prefix)
    for path in explore(lambda world, p=prefix: iterate(world, setting, p)):
      output = path.result[-1]
      known = has_ended(output, setting) or output in found or output in pending
      pending += [] if known else [output]
  return found


def absorb(
  setting: Setting, step: Callable[[Tokens], Iterable[tuple[Tokens, float]]]
) -> dict[Tokens, float]:
  """Returns the probs of the ended outputs that a Markov chain of prefixes comes to.

  Args:
    setting: when an output has ended.
    step: the outputs after one step from a prefix, all longer, with their chances.
  """
  reached, ended = {(): 1.0}, {}
  while reached:
    prefix = min(reached, key=len)
    mass = reached.pop(prefix)
    for output, probability in step(prefix):
      into = ended if has_ended(output, setting) else reached
      into[output] = into.get(output, 0.0) + mass * probability
  return {output: mass for output, mass in ended.items() if mass > 0}
