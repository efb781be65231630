"""Draft lengths under a policy, in float64: the oracle of adaptive gamma."""

import dataclasses

import numpy as np

from specdec_t5x.core.theory import expected_tokens
from specdec_t5x.core.tree import Tree
from tests.exactness.enumeration import has_ended, iterate


def decode(world, settings, policy, resumes=True):
  """Runs iterations of rows that share a draft length, until every output ends.

  Args:
    world: decides every outcome.
    settings: a setting per row, with the longest gamma.
    policy: a `CostAware`; only the policy's settings are used.
    resumes: whether drafting resumes after rests.

  Returns:
    The output of each row. Decision i of iteration n of a row is (row, n, i), of a
    single row (n, i).
  """
  outputs = [()] * len(settings)
  counts = []
  tree = Tree(settings[0].tree)
  # A policy may shorten a chain. A tree is drafted in full or not at all.
  choices = range(tree.depth + 1) if tree.is_chain else (0, tree.depth)
  has_rested = False
  while not all(map(has_ended, outputs, settings)):
    length = 0 if has_rested else best_length(policy, choices, counts)
    has_rested = not resumes and length == 0
    tried = np.zeros(2)
    for row, setting in enumerate(settings):
      if has_ended(outputs[row], setting):
        continue

      def stops(prefix, draft, length=length, rests=setting.stops):
        return rests(prefix, draft) or len(draft) >= length

      place = (row, len(counts)) if len(settings) > 1 else (len(counts),)

      def named(i, place=place):
        return (*place, i)

      own = dataclasses.replace(setting, stops=stops)
      draft, last, _, outputs[row] = iterate(world, own, outputs[row], named)
      children = (n for n, parent in enumerate(setting.tree, 1) if parent == last)
      is_cut = any(n in draft.distributions for n in children)
      accepted = len(draft.paths[last])
      tried += accepted, accepted + is_cut
    counts.append(tried)
  return tuple(outputs)


def best_length(policy, lengths, counts):
  """Returns the length with the most tokens per second.

  Args:
    policy: a `CostAware`.
    lengths: the lengths to choose from.
    counts: (accepted, tried) of each iteration.
  """
  weights = policy.decay ** np.arange(len(counts))[::-1]
  accepted, tried = (weights @ [past[i] for past in counts] for i in (0, 1))
  alpha = (policy.prior_alpha * policy.prior_weight + accepted) / (
    policy.prior_weight + tried
  )
  tokens = expected_tokens(alpha, np.array(lengths))
  return lengths[np.argmax(tokens / policy.seconds)]


def turns(path, gamma):
  """Returns the number of drafted tokens of each iteration of a path."""
  numbers = sorted({number for number, _ in path.cells})
  return [sum(m == n and i < gamma for m, i in path.cells) for n in numbers]
