"""Two rows that share a budget or a length, in float64: the distribution of both.

As in `enumeration`, whose iterations these are, the arithmetic is NumPy's and Python's.
"""

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np

from specdec_t5x.policies import Budget
from tests.exactness.enumeration import (
  Draft,
  Setting,
  World,
  _draft,
  cut,
  explore,
  has_ended,
  iterate,
  target_probs,
)
from tests.exactness.lengths import best_length

ROWS = 2

# ---- One iteration, whose drafts are cut once they are known. ----


def joint_probs(settings: list[Setting], admit: Callable) -> dict:
  """Returns the distribution of both outputs: an iteration, then tokens of p.

  Args:
    settings: of the rows.
    admit: from the rows' drafts to how many tokens of each count.
  """

  def program(world):
    drafts = [
      _draft(world, s, (), lambda i, r=r: (r, i)) for r, s in enumerate(settings)
    ]
    return tuple(
      _judged(world, setting, draft, count, lambda i, r=r: (r, i))
      for r, (setting, draft, count) in enumerate(
        zip(settings, drafts, admit(settings, drafts), strict=True)
      )
    )

  found = {}
  for path in explore(program):
    for outputs, mass in product(*map(_completed, settings, path.result)).items():
      found[outputs] = found.get(outputs, 0.0) + path.probability * mass
  return found


def _judged(world, setting, draft, count, names):
  """Returns the output after an iteration with the draft's first `count` tokens."""
  paths = {n: draft.paths[n] for n in range(count + 1)}
  kept = {n: q for n, q in draft.distributions.items() if n <= count}
  kept, size = Draft(paths, kept), len(setting.tree)
  of_node = lambda node: names(size + node - 1)
  last, distribution = setting.judge(world, setting, (), kept, of_node)
  next_token = world.draw(names(2 * size), distribution)
  return cut((*paths[last], next_token), setting)


def _completed(setting, output):
  """Returns the distribution of the output once the target has ended it."""
  after = lambda tokens: setting.target((*output, *tokens))
  if has_ended(output, setting):
    return {output: 1.0}
  room = setting.max_length - len(output)
  rest = dataclasses.replace(setting, target=after, max_length=room)
  return {(*output, *tokens): mass for tokens, mass in target_probs(rest).items()}


def product(*distributions: dict) -> dict:
  """Returns the distribution of independent outputs."""
  return {
    tuple(output for output, _ in each): np.prod([mass for _, mass in each])
    for each in itertools.product(*(d.items() for d in distributions))
  }


def total_variation(distribution: dict, other: dict) -> float:
  """Returns half the sum of absolute differences."""
  outputs = {*distribution, *other}
  apart = (distribution.get(o, 0.0) - other.get(o, 0.0) for o in outputs)
  return sum(map(abs, apart)) / 2


# ---- Ways to admit tokens: what a score reads, and how far it is followed. ----


def known_before(setting, draft):
  """Scores by the chance that a token stands: known before it is drawn, by x_(<k)."""
  return np.cumprod(
    [
      np.minimum(setting.target(draft.paths[node - 1]), q).sum()
      for node, q in sorted(draft.distributions.items())
    ]
  )


def of_the_token(setting, draft):
  """Scores by q of the drafted tokens themselves (TETRIS, arXiv 2502.15197)."""
  drawn = zip(draft.tokens, sorted(draft.distributions.items()), strict=True)
  return np.cumprod([q[x] for x, (_, q) in drawn])


def likeliest(most: int, score: Callable):
  """Admits the `most` tokens of the highest scores."""
  return _admitting(score, lambda scores: most)


def until_it_falls(score: Callable, speed: Callable):
  """Admits while (rows + sum of scores) speed(tokens) rises: DSpark's early stop."""

  def count(scores):
    thetas = _thetas(scores, speed)
    return next(
      (k for k in range(len(scores)) if thetas[k + 1] <= thetas[k]), len(scores)
    )

  return _admitting(score, count)


def best_of_all(score: Callable, speed: Callable):
  """Admits what maximises it, wherever that is."""
  return _admitting(score, lambda scores: int(np.argmax(_thetas(scores, speed))))


def _thetas(scores, speed):
  totals = ROWS + np.concatenate([[0.0], np.cumsum(scores)])
  return [total * speed(k) for k, total in enumerate(totals)]


def _admitting(score, count_of):
  def admit(settings, drafts):
    scored = [
      (-value, k, r)
      for r, (setting, draft) in enumerate(zip(settings, drafts, strict=True))
      for k, value in enumerate(score(setting, draft))
    ]
    scored.sort()
    admitted = scored[: count_of([-value for value, _, _ in scored])]
    return [sum(r == row for _, _, r in admitted) for row in range(ROWS)]

  return admit


# ---- Whole decodes under a policy, whose scores are of the past. ----


def decode(world: World, settings: list[Setting], policy, sure=None) -> tuple:
  """Runs iterations of both rows until they have ended; decision (row, number, i).

  Args:
    world: decides every outcome.
    settings: of the rows.
    policy: a `Budget`, or a `CostAware` of one length; its settings alone are used.
    sure: of heads, from the output and a path from it to how sure of a token they are.
  """
  outputs, history = [()] * ROWS, []
  while not all(map(has_ended, outputs, settings)):
    number, share = len(history), shares if isinstance(policy, Budget) else same_length
    counts = share(policy, settings, outputs, history, sure)
    history.append([(0, 0)] * ROWS)
    for row, (setting, count) in enumerate(zip(settings, counts, strict=True)):
      if has_ended(outputs[row], setting):
        continue
      stops = lambda prefix, draft, count=count, rests=setting.stops: (
        rests(prefix, draft) or len(draft) >= count
      )
      named = lambda i, row=row, number=number: (row, number, i)
      limited = dataclasses.replace(setting, stops=stops)
      draft, last, _, outputs[row] = iterate(world, limited, outputs[row], named)
      history[-1][row] = last, last + (last + 1 in draft.distributions)
  return tuple(outputs)


def same_length(policy, settings, outputs, history, sure=None) -> list[int]:
  """Returns the length that is best for the batch, for each row."""
  del outputs, sure
  counts = [np.sum(each, axis=0) for each in history]
  return [best_length(policy, range(len(settings[0].tree) + 1), counts)] * ROWS


def shares(policy, settings, outputs, history, sure=None) -> list[int]:
  """Returns how many tokens each row drafts, by trying every budget in turn."""
  gamma, weight = len(settings[0].tree), policy.prior_weight
  old = policy.decay ** np.arange(len(history))[::-1]
  counts = np.array(history, float).reshape(-1, ROWS, 2)
  accepted, tried = np.einsum("t,tri->ir", old, counts)
  share = lambda prior, a, n: (prior * weight + a) / (weight + n)
  others = accepted[::-1], tried[::-1]
  alpha = share(share(policy.prior_alpha, *others), accepted, tried)

  def survival(row, depth):
    if sure is None:
      return alpha[row] ** depth
    return np.prod([sure((outputs[row], (0,) * i)) for i in range(depth)])

  left = [s.max_length - len(o) for s, o in zip(settings, outputs, strict=True)]
  live = [not has_ended(o, s) for s, o in zip(settings, outputs, strict=True)]
  tokens = sorted(
    (-survival(r, depth), depth, r)
    for r in range(ROWS)
    for depth in range(1, (left[r] - 1 if live[r] else 0) + 1)
    if depth <= gamma
  )
  speed = lambda k: (
    (sum(live) - sum(t[0] for t in tokens[:k]))
    / _seconds(policy, gamma, k, max((depth for _, depth, _ in tokens[:k]), default=0))
  )
  best = max(range(len(tokens) + 1), key=speed)
  return [sum(r == row for _, _, r in tokens[:best]) for row in range(ROWS)]


def _seconds(policy, gamma, drafted, longest):
  if not drafted:
    return policy.seconds[0]
  widths = [ROWS * each for each in (1.5, 2, 3, 4) if each < gamma + 1]
  widths.append(ROWS * (gamma + 1))
  width = lambda count: min(w for w in widths if w >= ROWS + count)
  alone, even = policy.seconds[longest], policy.seconds[gamma + longest]
  few, all_rows = width(longest), width(ROWS * longest)
  part = (width(drafted) - few) / (all_rows - few) if all_rows > few else 0.0
  return alone + part * (even - alone)
