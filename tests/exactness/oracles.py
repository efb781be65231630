"""The verification rules as their papers write them, for `enumeration`.

A judge takes (world, setting, prefix, drafts, names) and returns the draft that it
keeps, how many of its tokens are accepted, and the law of the next token. `names(c, i)`
names the decision on token i of draft c. Float64, one draft at a time: slow,
and short enough to be checked against the papers by eye.
"""

import functools

import numpy as np

from tests.exactness.enumeration import Setting, Tokens, World


def token(world: World, setting: Setting, prefix: Tokens, drafts, names):
  """Token-by-token verification (Leviathan et al., algorithm 1)."""
  return lenient(1.0)(world, setting, prefix, drafts, names)


def lenient(lenience: float):
  """Returns the judge that tests against lenience * q (appendix A.5)."""

  def judge(world, setting, prefix, drafts, names):
    (draft,) = drafts
    for i, x in enumerate(draft):
      p, q = _laws(setting, prefix, draft[:i])
      if not world.flip(names(0, i), min(1.0, p[x] / (lenience * q[x]))):
        return draft, i, _residual(p, q)
    return draft, len(draft), setting.target((*prefix, *draft))

  return judge


def greedy(world, setting, prefix, drafts, names):
  """Exact match with the target's argmax (Stern et al., section 3)."""
  del world, names
  (draft,) = drafts
  best = lambda i: int(np.argmax(setting.target((*prefix, *draft[:i]))))
  accepted = next((i for i, x in enumerate(draft) if x != best(i)), len(draft))
  return draft, accepted, np.eye(setting.target(prefix).size)[best(accepted)]


def lenient_greedy(lenience: float):
  """Returns the judge of greedy lenience (appendix A.5), on p at temperature 1."""

  def judge(world, setting, prefix, drafts, names):
    del world, names
    (draft,) = drafts
    laws = [setting.target((*prefix, *draft[:i])) for i in range(len(draft) + 1)]
    enough = [p[x] >= lenience * max(p) for p, x in zip(laws, draft, strict=False)]
    accepted = [*enough, False].index(False)
    return draft, accepted, np.eye(laws[0].size)[int(np.argmax(laws[accepted]))]

  return judge


def typical(epsilon: float = 0.09, delta: float = 0.3):
  """Returns the judge of typical acceptance (Cai et al., section 2.3.2)."""

  def judge(world, setting, prefix, drafts, names):
    del world, names
    (draft,) = drafts
    for i, x in enumerate(draft):
      p = setting.target((*prefix, *draft[:i]))
      entropy = -sum(mass * np.log(mass) for mass in p if mass > 0)
      if p[x] <= min(epsilon, delta * np.exp(-entropy)):
        return draft, i, p
    return draft, len(draft), setting.target((*prefix, *draft))

  return judge


def block(world, setting, prefix, drafts, names):
  """Block verification (Sun et al., arXiv 2403.10444, algorithm 2)."""
  (draft,) = drafts
  weight, accepted, law = (
    1.0,
    0,
    _residual(*_block_laws(setting, prefix, draft, 0, 1.0)),
  )
  for i, x in enumerate(draft):
    p, q = _laws(setting, prefix, draft[:i])
    weight = min(1.0, weight * p[x] / q[x])
    p, q = _block_laws(setting, prefix, draft, i + 1, weight)
    mass = np.maximum(p - q, 0).sum()
    certain = mass + 1 - weight <= 0
    if world.flip(names(0, i), 1.0 if certain else mass / (mass + 1 - weight)):
      accepted, law = i + 1, _residual(p, q)
  return draft, accepted, law


def _block_laws(setting, prefix, draft, size, weight):
  p, q = _laws(setting, prefix, draft[:size])
  return weight * p, q if size < len(draft) else np.zeros_like(q)


def kseq(world, setting, prefix, drafts, names):
  """k-SEQ (Sun et al., arXiv 2310.15141, algorithm 2, p and q as everywhere here)."""

  def judge(p, q, tokens, flip):
    rho = _least_rho(tuple(p), tuple(q), len(tokens))
    one = np.minimum(q, p / rho)
    for i, x in enumerate(tokens):
      if flip(i, min(1.0, p[x] / (rho * q[x]))):
        return i, None
    beta = one.sum()
    share = (1 - (1 - beta) ** len(tokens)) / beta if beta else 0.0
    return None, _residual(p, share * one)

  return _walk(world, setting, prefix, drafts, names, judge)


def recursive(world, setting, prefix, drafts, names):
  """Recursive rejection (Miao et al., arXiv 2305.09781, algorithm 2)."""

  def judge(p, q, tokens, flip):
    for i, x in enumerate(tokens):
      if flip(i, min(1.0, p[x] / q[x])):
        return i, None
      p = _residual(p, q)
    return None, p

  return _walk(world, setting, prefix, drafts, names, judge)


def _walk(world, setting, prefix, drafts, names, judge):
  """Goes on with the drafts that agree with what was accepted, until none passes."""
  running, accepted = list(range(len(drafts))), ()
  while True:
    position = len(accepted)
    p, q = _laws(setting, prefix, accepted)
    present = [c for c in running if position < len(drafts[c])]
    if not present:
      return drafts[running[0]], position, p
    tokens = [drafts[c][position] for c in present]
    flip = lambda i, chance, c=present, at=position: world.flip(names(c[i], at), chance)
    passed, left = judge(p, q, tokens, flip)
    if passed is None:
      return drafts[running[0]], position, left
    accepted += (tokens[passed],)
    running = [c for c, x in zip(present, tokens, strict=True) if x == accepted[-1]]


def _laws(setting, prefix, more):
  context = (*prefix, *more)
  return setting.target(context), setting.draft(context)


def _residual(p, q):
  excess = np.maximum(p - q, 0.0)
  return excess / excess.sum() if excess.sum() > 0 else p / p.sum()


@functools.cache
def _least_rho(p, q, count):
  p, q = np.array(p), np.array(q)
  low, high = 1.0, float(count)
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
  "typical": typical(),
}
