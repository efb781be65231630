"""The verification rules as in their papers, for `enumeration`.

A judge takes (world, setting, prefix, draft, names). A judge returns the last accepted
node (for a chain, the number of accepted tokens) and the distribution of the next
token. `names(n)` names the decision on node n. The code is float64, one draft at a
time, and short enough to compare with the papers by eye.
"""

import functools
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from tests.exactness.enumeration import Draft, Setting, Tokens, World


def token(world: World, setting: Setting, prefix: Tokens, draft: Draft, names):
  """Verifies token by token (Leviathan et al., algorithm 1)."""
  return lenient(1.0)(world, setting, prefix, draft, names)


def lenient(lenience: float):
  """Returns the judge that tests against lenience * q (appendix A.5)."""

  def judge(world, setting, prefix, draft, names):
    for i, x in enumerate(draft.tokens):
      p = _target(setting, prefix, draft, i)
      q = draft.distributions[i + 1]
      if not world.flip(names(i + 1), min(1.0, p[x] / (lenience * q[x]))):
        return i, _residual(p, q)
    return len(draft.tokens), _target(setting, prefix, draft, len(draft.tokens))

  return judge


def greedy(world, setting, prefix, draft, names):
  """Accepts exact matches with the target's argmax (Stern et al., section 3)."""
  del world, names

  def best(n):
    return int(np.argmax(_target(setting, prefix, draft, n)))

  def agrees(n):
    return all(
      best(setting.tree[m - 1]) == draft.paths[m][-1] for m in _line(setting, n)
    )

  last = max(filter(agrees, draft.paths), key=lambda n: len(draft.paths[n]))
  return last, np.eye(setting.target(prefix).size)[best(last)]


def lenient_greedy(lenience: float):
  """Returns the judge of greedy lenience (appendix A.5), on p at temperature 1."""
  return greedy_while(lambda p, x: p[x] >= lenience * max(p))


def greedy_while(passes: Callable[[Float[np.ndarray, "V"], int], bool]):
  """Returns the judge that accepts tokens while `passes` holds, then takes argmax p."""

  def judge(world, setting, prefix, draft, names):
    del world, names
    distributions = [_target(setting, prefix, draft, i) for i in sorted(draft.paths)]
    passed = [passes(p, x) for p, x in zip(distributions, draft.tokens, strict=False)]
    accepted = [*passed, False].index(False)
    best = np.argmax(distributions[accepted])
    return accepted, np.eye(distributions[0].size)[best]

  return judge


def typical(epsilon: float = 0.09, delta: float = 0.3):
  """Returns the judge of typical acceptance (Cai et al., section 2.3.2)."""

  def judge(world, setting, prefix, draft, names):
    del world, names
    for i, x in enumerate(draft.tokens):
      p = _target(setting, prefix, draft, i)
      entropy = -sum(mass * np.log(mass) for mass in p if mass > 0)
      if p[x] <= min(epsilon, delta * np.exp(-entropy)):
        return i, p
    return len(draft.tokens), _target(setting, prefix, draft, len(draft.tokens))

  return judge


def block(world, setting, prefix, draft, names):
  """Verifies blocks (Sun et al., arXiv 2403.10444, algorithm 2)."""
  weight = 1.0
  accepted = 0
  distribution = _residual(*_block_probs(setting, prefix, draft, 0, 1.0))
  for i, x in enumerate(draft.tokens):
    p = _target(setting, prefix, draft, i)
    q = draft.distributions[i + 1]
    weight = min(1.0, weight * p[x] / q[x])
    p, q = _block_probs(setting, prefix, draft, i + 1, weight)
    mass = np.maximum(p - q, 0).sum()
    certain = mass + 1 - weight <= 0
    if world.flip(names(i + 1), 1.0 if certain else mass / (mass + 1 - weight)):
      accepted = i + 1
      distribution = _residual(p, q)
  return accepted, distribution


def _block_probs(setting, prefix, draft, size, weight):
  p = _target(setting, prefix, draft, size)
  return weight * p, draft.distributions.get(size + 1, np.zeros_like(p))


def kseq(world, setting, prefix, draft, names):
  """Verifies by k-SEQ (Sun et al., arXiv 2310.15141, algorithm 2).

  p is the target's distribution, and q is the draft's distribution.
  """

  def judge(p, distributions, tokens, flip):
    q = distributions[0]
    rho = _least_rho(tuple(p), tuple(q), len(tokens))
    one = np.minimum(q, p / rho)
    for i, x in enumerate(tokens):
      if flip(i, min(1.0, p[x] / (rho * q[x]))):
        return i, None
    beta = one.sum()
    share = (1 - (1 - beta) ** len(tokens)) / beta if beta else 0.0
    return None, _residual(p, share * one)

  return _walk(world, setting, prefix, draft, names, judge)


def recursive(world, setting, prefix, draft, names):
  """Rejects recursively (Miao et al., arXiv 2305.09781, algorithm 2)."""

  def judge(p, distributions, tokens, flip):
    for i, (x, q) in enumerate(zip(tokens, distributions, strict=True)):
      if flip(i, min(1.0, p[x] / q[x])):
        return i, None
      p = _residual(p, q)
    return None, p

  return _walk(world, setting, prefix, draft, names, judge)


def _walk(world, setting, prefix, draft, names, judge):
  """Judges all nodes that continue the accepted path, until no node passes."""
  last = 0
  while True:
    accepted = draft.paths[last]
    present = [n for n in draft.distributions if draft.paths[n][:-1] == accepted]
    p = _target(setting, prefix, draft, last)
    if not present:
      return last, p
    tokens = [draft.paths[n][-1] for n in present]

    def flip(i, chance, nodes=present):
      return world.flip(names(nodes[i]), chance)

    passed, left = judge(p, [draft.distributions[n] for n in present], tokens, flip)
    if passed is None:
      return last, left
    last = present[passed]


def traversal(world, setting, prefix, draft, names):
  """Verifies by traversal (Weng et al., arXiv 2505.12398, algorithm 2)."""
  distributions = {node: _target(setting, prefix, draft, node) for node in draft.paths}
  rejected = {0: 1.0}  # Assigned weights: the root's, and weights after rejections.

  def weight(node):
    if node in rejected:
      return rejected[node]
    parent = setting.tree[node - 1]
    x = draft.paths[node][-1]
    return min(
      1.0, weight(parent) * distributions[parent][x] / draft.distributions[node][x]
    )

  for node in _leaves_first(setting.tree, draft.paths):
    if node == 0 or world.flip(names(node), weight(node)):
      return node, distributions[node]
    parent = setting.tree[node - 1]
    w = weight(parent)
    excess = np.maximum(w * distributions[parent] - draft.distributions[node], 0.0)
    mass = excess.sum()
    rejected[parent] = mass / (mass + 1 - w) if mass + 1 - w > 0 else 1.0
    distributions[parent] = excess / mass if mass > 0 else distributions[parent]
  raise AssertionError("The root always passes.")


def _leaves_first(tree, nodes, top=0):
  """Returns the nodes, children before parents and siblings in order."""
  below = [n for n, parent in enumerate(tree, 1) if parent == top and n in nodes]
  return [*(x for child in below for x in _leaves_first(tree, nodes, child)), top]


def _line(setting, node):
  """Returns the drafted nodes from `node` up to the root."""
  return [node, *_line(setting, setting.tree[node - 1])] if node else []


def _target(setting, prefix, draft, node):
  return setting.target((*prefix, *draft.paths[node]))


def _residual(p, q):
  excess = np.maximum(p - q, 0.0)
  return excess / excess.sum() if excess.sum() > 0 else p / p.sum()


@functools.cache
def _least_rho(p, q, count):
  p = np.array(p)
  q = np.array(q)
  low = 1.0
  high = float(count)
  for _ in range(60):
    rho = (low + high) / 2
    beta = np.minimum(q, p / rho).sum()
    enough = 1 - (1 - beta) ** count <= rho * beta
    low, high = (low, rho) if enough else (rho, high)
  return high


JUDGES = {
  "token": token,
  "greedy": greedy,
  "block": block,
  "kseq": kseq,
  "recursive": recursive,
  "traversal": traversal,
  "typical": typical(),
}
