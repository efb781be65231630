"""Every path of an iteration on a tree, side by side: the oracle of trees.

`oracles` follows one path at a time, which is slow on trees with thousands of paths.
Here each row of an array is a path, and a decision splits rows by outcome. The code is
float64 NumPy on the distributions of table models, and shares no code with the library.
Shapes: R paths, G drafted nodes, N = G + 1 nodes, V vocabulary.
"""

import itertools

import numpy as np

from specdec_t5x.core.distributions import Sampling
from tests.exactness.distributions import adjusted
from tests.exactness.enumeration import BRANCHES
from tests.hash_model import MODULUS, place_weights

EOS = 1
GARBAGE = 2
LEAST = 1e-13


def canonical(size):
  """Returns all trees of `size` nodes: earlier parents, in non-decreasing order."""
  choices = itertools.product(*(range(node) for node in range(1, size + 1)))
  return [parents for parents in choices if list(parents) == sorted(parents)]


def depths_of(parents):
  """Returns the depth of each node."""
  depths = [0]
  for parent in parents:
    depths.append(depths[parent] + 1)
  return depths


class Paths:
  """Drafts on a tree after some prefixes, and the results of their verification.

  Every array attribute has a row per path. The decisions are the G tests and the final
  draw.

  Attributes:
    prefix: the number of the prefix before the path.
    place: the place of the last known token; the start token has place 0.
    room: the number of tokens that still fit.
    tokens: [R, N]; the root's entry is not a drafted token.
    counts: [R, N], whether each node counts.
    has_token: [R, N], whether each node has a token, regardless of room.
    distributions: q of each node, [R, N, V].
    sums: [R, N], the hash of each node's path in the table models.
    spelt: [R, N], each node's path as a number.
    probability: the probability of the path.
    low: the lower edge of each decision's cell, [R, N].
    high: the upper edge of each decision's cell, [R, N].
    reached: the probability that the path reaches each decision, [R, N].
  """

  def __init__(self, target, draft, sampling, parents, prefixes, max_length):
    assert target.vocab_size <= BRANCHES
    self._parents = parents
    self._depths = depths_of(parents)

    def distributions(model, sampling):
      return np.stack([adjusted(logits, sampling) for logits in model.table])

    # Certain tokens are the likeliest tokens at temperature 1.
    self._p = distributions(target, sampling)
    self._q = distributions(draft, Sampling())
    rows = len(prefixes)
    nodes = len(parents) + 1
    size = target.vocab_size
    self.prefix = np.arange(rows)
    self.room = max_length - np.array([len(prefix) for prefix in prefixes])
    self.tokens = np.full((rows, nodes), GARBAGE)
    self.counts = np.zeros((rows, nodes), bool)
    self.counts[:, 0] = True
    self.has_token = np.ones((rows, nodes), bool)
    self.distributions = np.full((rows, nodes, size), 0.7)
    self.sums, self.spelt = np.zeros((2, rows, nodes), int)
    self._weights = place_weights(64)
    for row, prefix in enumerate(prefixes):
      known = np.array([0, *prefix]) + 1
      self.sums[row, 0] = known @ self._weights[: known.size]
    self.place = max_length - self.room
    self.probability = np.ones(rows)
    self.low = np.zeros((rows, nodes))
    self.reached = np.ones((rows, nodes))
    self.high = np.ones((rows, nodes))

  def nodes(self):
    """Returns the drafted nodes with their parents."""
    return enumerate(self._parents, 1)

  def p(self, node):
    """Returns p after a node, or after a node per path, [R, V]."""
    return self._p[_at(self.sums, node) % MODULUS]

  def split(self, chances, counts, decision=None):
    """Splits the paths by the outcomes of a decision.

    Returns:
      The outcome per path, and whether the decision counts. Outcomes are 0 if not.
    """
    possible = chances > LEAST
    possible[~counts] = np.arange(chances.shape[1]) == 0
    of, outcome = np.nonzero(possible)
    for name, value in vars(self).items():
      if not name.startswith("_"):
        setattr(self, name, value[of])
    counts = counts[of]
    rows = np.arange(of.size)
    edges = np.pad(np.cumsum(chances, axis=1), ((0, 0), (1, 0)))[of]
    if decision is not None:
      self.low[:, decision] = np.where(counts, edges[rows, outcome], 0)
      self.high[:, decision] = np.where(counts, edges[rows, outcome + 1], 1)
      self.reached[:, decision] = self.probability
    self.probability *= np.where(counts, chances[of, outcome], 1)
    return outcome, counts

  def flip(self, node, chance, counts):
    """Returns the paths that count and pass a node's test, and the paths that fail."""
    chances = np.stack([chance, 1 - chance], axis=1)
    outcome, counts = self.split(chances, counts, node - 1)
    return counts & (outcome == 0), counts & (outcome == 1)

  def draft(self, siblings):
    """Draws every node."""
    for node, parent in self.nodes():
      distribution = self._q[self.sums[:, parent] % MODULUS].copy()
      for before in range(1, node) if siblings != "independent" else ():
        if self._parents[before - 1] == parent:
          distribution[
            self.counts[:, before], self.tokens[self.counts[:, before], before]
          ] = 0
      if siblings == "likeliest":
        likeliest = np.eye(distribution.shape[1])[distribution.argmax(axis=1)]
        distribution = likeliest * distribution.any(axis=1)[:, None]
      mass = distribution.sum(axis=1)
      self.has_token[:, node] = (mass > 0) & self.has_token[:, parent]
      counts = self.counts[:, parent] & (mass > 0)
      counts &= (self._depths[node] < self.room) & (
        (parent == 0) | (self.tokens[:, parent] != EOS)
      )
      distribution = distribution / np.where(mass > 0, mass, 1)[:, None]
      self.distributions[:, node] = np.where(
        counts[:, None], distribution, self.distributions[:, node]
      )
      token, counts = self.split(distribution, counts)
      self.counts[:, node] = counts
      self.tokens[:, node] = np.where(counts, token, GARBAGE)
      weight = self._weights[self.place + self._depths[node]]
      self.sums[:, node] = self.sums[:, parent] + (token + 1) * weight
      self.spelt[:, node] = (
        self.spelt[:, parent] * (distribution.shape[1] + 1) + token + 1
      )
    return self

  def judged(self, judge):
    """Applies a rule, and draws the next token from the rule's distribution."""
    distribution = judge(self)
    everywhere = np.ones(len(distribution), bool)
    self.next_token, _ = self.split(distribution, everywhere, len(self._parents))
    return self

  def accepted(self):
    """Returns the tokens up to the last accepted node, zero-padded, and the depth."""
    rows = np.arange(self.last.size)
    depths = np.array(self._depths)
    tokens = np.zeros((rows.size, depths.max() + 1), int)
    node = self.last
    above = np.array([0, *self._parents])
    while node.any():
      at = np.where(node > 0, depths[node] - 1, -1)
      tokens[rows, at] = np.where(node > 0, self.tokens[rows, node], 0)
      node = above[node]
    return tokens, depths[self.last]


def recursive(paths):
  """Rejects recursively (Miao et al., arXiv 2305.09781, algorithm 2)."""
  paths.last = np.zeros_like(paths.prefix)
  paths.left = paths.p(0)
  for node, parent in paths.nodes():
    x = paths.tokens[:, node]
    q = paths.distributions[:, node]
    chance = np.minimum(1, _at(paths.left, x) / _positive(_at(q, x)))
    passes, fails = paths.flip(node, chance, _present(paths, node, parent))
    residual = _residual(paths.left, paths.distributions[:, node])
    paths.left = np.where(fails[:, None], residual, paths.left)
    paths.left = np.where(passes[:, None], paths.p(node), paths.left)
    paths.last = np.where(passes, node, paths.last)
  return paths.left


def kseq(paths):
  """Verifies by k-SEQ (Sun et al., arXiv 2310.15141, algorithm 2)."""
  paths.last = np.zeros_like(paths.prefix)
  for node, parent in paths.nodes():
    present = _present(paths, node, parent)
    x = paths.tokens[:, node]
    _, p, q, rho = _stage(paths)
    chance = np.minimum(1, _at(p, x) / _positive(rho * _at(q, x)))
    passes, _ = paths.flip(node, np.where(present, chance, 1), present)
    paths.last = np.where(passes, node, paths.last)
  count, p, q, rho = _stage(paths)
  one = np.minimum(q, p / rho[:, None])
  beta = one.sum(axis=1)
  share = (1 - (1 - beta) ** count) / _positive(beta)
  return np.where(count[:, None] > 0, _residual(p, share[:, None] * one), p)


def traversal(paths):
  """Verifies by traversal (Weng et al., arXiv 2505.12398, algorithm 2)."""
  nodes = np.arange(paths.tokens.shape[1])
  paths.last = np.full_like(paths.prefix, -1)
  paths.after = np.stack([paths.p(node) for node in nodes], axis=1)
  paths.weight = np.where(nodes == 0, 1.0, np.nan) + 0 * paths.after[..., 0]
  parents = dict(paths.nodes())

  def weight(node):
    """Returns the assigned weight, or the weight that follows from the parent's."""
    if node == 0:
      return paths.weight[:, 0]
    x = paths.tokens[:, node]
    parent = parents[node]
    p = _at(paths.after[:, parent], x)
    q = _at(paths.distributions[:, node], x)
    follows = np.minimum(1, weight(parent) * p / _positive(q))
    return np.where(np.isnan(paths.weight[:, node]), follows, paths.weight[:, node])

  for node in _leaves_first(parents):
    live = paths.counts[:, node] & (paths.last < 0)
    parent = parents[node]
    passes, fails = paths.flip(node, weight(node), live)
    paths.last = np.where(passes, node, paths.last)
    w = weight(parent)
    distribution = paths.after[:, parent]
    excess = np.maximum(w[:, None] * distribution - paths.distributions[:, node], 0)
    mass = excess.sum(axis=1)
    new = np.where(mass + 1 - w > 0, mass / _positive(mass + 1 - w), 1)
    paths.weight[:, parent] = np.where(fails, new, paths.weight[:, parent])
    distribution = np.where(
      (mass > 0)[:, None], excess / _positive(mass)[:, None], distribution
    )
    paths.after[:, parent] = np.where(
      fails[:, None], distribution, paths.after[:, parent]
    )
  paths.last = np.maximum(paths.last, 0)
  return _at(paths.after, paths.last)


def greedy(paths):
  """Accepts the longest path of argmaxes (Stern et al., section 3)."""
  agrees = np.zeros(paths.tokens.shape, bool)
  depth = depths_of(paths._parents)
  agrees[:, 0] = True
  for node, parent in paths.nodes():
    best = paths.p(parent).argmax(axis=1) == paths.tokens[:, node]
    agrees[:, node] = agrees[:, parent] & paths.counts[:, node] & best
  paths.last = np.where(agrees, depth, -1).argmax(axis=1)
  return paths.p(paths.last)


JUDGES = {
  "greedy": greedy,
  "recursive": recursive,
  "kseq": kseq,
  "traversal": traversal,
}


def _present(paths, node, parent):
  """Returns whether a node continues the accepted tokens, through any equal path."""
  spells = paths.spelt[:, parent] == _at(paths.spelt, paths.last)
  return spells & paths.counts[:, node]


def _stage(paths):
  """Returns the number of nodes that continue the accepted path, p, q and rho."""
  present = [_present(paths, node, parent) for node, parent in paths.nodes()]
  p = paths.p(paths.last)
  q = _at(paths.distributions, 1 + np.argmax(present, axis=0))
  count = np.sum(present, axis=0)
  low = np.ones(len(p))
  high = np.maximum(count, 1.0)
  for _ in range(60):
    rho = (low + high) / 2
    beta = np.minimum(q, p / rho[:, None]).sum(axis=1)
    enough = 1 - (1 - beta) ** count <= rho * beta
    low = np.where(enough, low, rho)
    high = np.where(enough, rho, high)
  return count, p, q, high


def _leaves_first(parents, top=0):
  """Returns the drafted nodes, children before parents and siblings in order."""
  below = [node for node, parent in parents.items() if parent == top]
  return [x for child in below for x in (*_leaves_first(parents, child), child)]


def _at(array, index):
  """Returns the values of [R, M, ...] at one index, or at one index per row."""
  return array[np.arange(len(array)), index]


def _positive(x):
  return np.where(x > 0, x, 1)


def _residual(p, q):
  excess = np.maximum(p - q, 0.0)
  mass = excess.sum(axis=1, keepdims=True)
  return np.where(mass > LEAST, excess / _positive(mass), p)
