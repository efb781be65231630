"""Draft lengths under a policy, in float64: the oracle of adaptive gamma."""

import dataclasses

import numpy as np

from specdec_t5x.core.theory import expected_tokens
from specdec_t5x.core.tree import Tree
from tests.exactness.enumeration import has_ended, iterate


def decode(world, setting, policy, resumes=True):
  """Runs `enumeration.decode` with each draft's length set by a policy.

  Args:
    world: decides every outcome.
    setting: the setting of the decode, with the longest gamma.
    policy: a `CostAware`; only the policy's settings are used.
    resumes: whether drafting resumes after rests.
  """
  output = ()
  history = []
  may_draft = setting.stops
  tree = Tree(setting.tree)
  # A policy may shorten a chain. A tree is drafted in full or not at all.
  longer = range(tree.depth + 1) if tree.is_chain else (0, tree.depth)

  def stops(prefix, draft):
    if may_draft(prefix, draft):
      return True
    histories = (history[:n] for n in range(len(history)))
    if not (
      resumes or all(best_length(policy, longer, before) for before in histories)
    ):
      return True
    return len(draft) >= best_length(policy, longer, history)

  setting = dataclasses.replace(setting, stops=stops)
  while not has_ended(output, setting):
    number = len(history)

    def named(i, number=number):
      return (number, i)

    draft, last, _, output = iterate(world, setting, output, named)
    children = (n for n, parent in enumerate(setting.tree, 1) if parent == last)
    accepted = len(draft.paths[last])
    is_cut = any(n in draft.distributions for n in children)
    history.append((accepted, accepted + is_cut, len(draft.tokens)))
  return output


def best_length(policy, lengths, history):
  """Returns the length with the most tokens per second.

  Args:
    policy: a `CostAware`.
    lengths: the lengths to choose from.
    history: (accepted, tried, ..) of each draft.
  """
  weights = policy.decay ** np.arange(len(history))[::-1]
  accepted, tried = (weights @ [past[i] for past in history] for i in (0, 1))
  alpha = (policy.prior_alpha * policy.prior_weight + accepted) / (
    policy.prior_weight + tried
  )
  tokens = expected_tokens(alpha, np.array(lengths))
  return lengths[np.argmax(tokens / policy.seconds)]


def turns(path, gamma):
  """Returns the number of drafted tokens of each iteration of a path."""
  numbers = sorted({number for number, _ in path.cells})
  return [sum(m == n and i < gamma for m, i in path.cells) for n in numbers]
