"""The exact output distribution of speculative decoding, by float64 enumeration.

A random algorithm is a plain function that asks a `World` for every random outcome.
`explore` runs the function once per possible combination of outcomes. `iterate` is one
iteration of speculative decoding, on distributions that are functions of the prefix.
`output_probs` gives the distribution of whole outputs. The code uses only NumPy and
Python, and shares no code with the decoders under test.

Each path also gives the cell of every uniform: a cell per accept test, and a cell per
level of the tree for a drawn token. Driven with uniforms from the cells, the compiled
rules and the compiled loop must take the same path. Their distribution then equals the
enumerated distribution (tests/exactness/).

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

BRANCHES = 8  # The number of branches in the tree that draws a token.


class Cell(NamedTuple):
  """The interval [low, high) of [0, 1) for a uniform on a path.

  Attributes:
    low: the lower edge.
    high: the upper edge.
    reached: the probability that the path reaches the uniform.
  """

  low: float
  high: float
  reached: float


class World:
  """The outcomes of one run: prescribed outcomes, then the first possible outcomes.

  Attributes:
    probability: the probability of all outcomes so far.
    cells: the cells of each decision's uniforms, by the decision's name.
    untaken: the choices that lead to the untaken runs.
  """

  def __init__(self, choices: tuple[int, ...] = ()):
    self._prescribed = choices
    self._taken = ()
    self.probability = 1.0
    self.cells = {}
    self.untaken = []

  def draw(self, name: Any, distribution: Float[np.ndarray, "V"]) -> int:
    """Returns a token drawn from `distribution`, by the uniforms called `name`."""
    possible = _possible(np.asarray(distribution, float).tobytes())
    token, edges = possible[self._choose(len(possible))]
    self._note(name, *edges)
    return token

  def flip(self, name: Any, chance: float) -> bool:
    """Returns whether an event of probability `chance` happened: uniform < chance."""
    outcomes = [o for o, c in ((True, chance), (False, 1 - chance)) if c > 0]
    happened = outcomes[self._choose(len(outcomes))]
    self._note(name, (0.0, chance) if happened else (chance, 1.0))
    return happened

  def _choose(self, count):
    """Returns the index of the outcome; records the alternatives in `untaken`."""
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
  """Returns possible tokens of a distribution in bytes, with `edges_of` the tokens.

  Many paths draw from a few distributions, hence the cache.
  """
  distribution = np.frombuffer(data)
  # A smaller probability would leave the cell without width.
  possible = np.flatnonzero(distribution > np.finfo(float).eps * distribution.sum())
  return [(token, edges_of(token, distribution)) for token in possible.tolist()]


def edges_of(
  token: int, distribution: Float[np.ndarray, "V"]
) -> list[tuple[float, float]]:
  """Returns the interval of each level's uniform that leads to `token`, top first.

  A distribution of more than `BRANCHES` tokens is cut into n groups: i, i + n, i + 2 n,
  .. The upper levels draw the group. The last level draws the token within the group.
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
  """A possible path of a run.

  Attributes:
    result: the result of the run.
    probability: the probability of the path.
    cells: the cells of each decision's uniforms, by the decision's name, in the order
      of reading; unused uniforms have no entry.
  """

  result: Any
  probability: float
  cells: dict[Any, tuple[Cell, ...]]


def explore(program: Callable[[World], Any]) -> Iterator[Path]:
  """Yields every path of `program` with a probability; probabilities sum to 1."""
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
    judge: the rule, from `oracles.JUDGES`.
    tree: the parents of nodes 1, 2, .. of a draft; node 0 is the known prefix.
    max_length: the room for the output.
    eos_id: the token that ends the output, or a tuple of end tokens.
    siblings: how the children of a node are drawn: 'independent', 'distinct' (without
      replacement) or 'likeliest' (certain tokens, the likeliest by q).
    stops: whether a draft stops, given the output before the draft and the draft's
      tokens so far.
    given: maps the arguments of `stops` to the argument of `draft`.
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
  """The valid nodes of a draft.

  Attributes:
    paths: each node's tokens from the root; the root, node 0, has no tokens.
    distributions: q of each node's token, given the path and the earlier siblings.
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
    setting: the models and the settings of the decode.
    prefix: the output so far.
    names: the name of this iteration's i-th decision. The order is the compiled loop's:
      a decision per drafted node, per accept test, and for the next token.

  Returns:
    The draft, the last accepted node, the next token, and the new output.
  """
  draft = _draft(world, setting, prefix, names)
  size = len(setting.tree)

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
  # The target always adds a token, so the draft leaves room for the token.
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
  """Returns q of a node's next child, or zeros if no token is left."""
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
  output = ()
  number = 0
  while not has_ended(output, setting):

    def named(i, number=number):
      return (number, i)

    output = iterate(world, setting, output, named)[-1]
    number += 1
  return output


def has_end(tokens: Tokens, setting: Setting) -> bool:
  """Returns whether any token ends the output."""
  return any(is_end(token, setting) for token in tokens)


def has_ended(output: Tokens, setting: Setting) -> bool:
  """Returns whether nothing follows `output`."""
  return has_end(output, setting) or len(output) == setting.max_length


def output_probs(setting: Setting) -> dict[Tokens, float]:
  """Returns the probability of each output of speculative decoding.

  An iteration depends on the prefix alone. The computation takes prefixes shortest
  first, with the probability that an iteration ends at the prefix.
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


def outputs_of(setting: Setting) -> dict[Tokens, float]:
  """Returns the target's distribution of outputs, padded with zeros like the loop's."""
  length = setting.max_length
  return {
    output + (0,) * (length - len(output)): mass
    for output, mass in target_probs(setting).items()
  }


def prefixes(setting: Setting) -> list[Tokens]:
  """Returns every prefix after which an iteration can begin."""
  found = []
  pending = [()]
  while pending:
    prefix = pending.pop()
    found.append(prefix)
    for path in explore(lambda world, p=prefix: iterate(world, setting, p)):
      output = path.result[-1]
      is_known = has_ended(output, setting) or output in found or output in pending
      pending += [] if is_known else [output]
  return found


def absorb(
  setting: Setting, step: Callable[[Tokens], Iterable[tuple[Tokens, float]]]
) -> dict[Tokens, float]:
  """Returns the distribution of ended outputs of a Markov chain of prefixes.

  Args:
    setting: defines the end of an output.
    step: returns the outputs after one step from a prefix, with their probabilities;
      every output is longer than the prefix.
  """
  reached = {(): 1.0}
  ended = {}
  while reached:
    prefix = min(reached, key=len)
    mass = reached.pop(prefix)
    for output, probability in step(prefix):
      into = ended if has_ended(output, setting) else reached
      into[output] = into.get(output, 0.0) + mass * probability
  return {output: mass for output, mass in ended.items() if mass > 0}
