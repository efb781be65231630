"""How long drafts are under a policy, in float64: the oracle of adaptive gamma."""

import dataclasses

import numpy as np

from specdec_t5x.analysis.theory import expected_tokens
from specdec_t5x.core.tree import Tree
from specdec_t5x.policies import Confidence, ExitThreshold
from tests.exactness.enumeration import has_ended, iterate


def decode(world, setting, policy, distribution, resumes=True):
  """As `enumeration.decode`, each draft's length by the policy.

  Args:
    world: decides every outcome.
    setting: what is decoded, with the longest gamma.
    policy: of `specdec_t5x.policies`; its settings alone are used.
    distribution: what confidence is read from, as a function of what the draft's
      distribution is one of.
    resumes: whether drafts go on after rests.
  """
  output, history, may_draft = (), [], setting.stops
  tree = Tree(setting.tree)
  # A chain is cut where it pays; of a tree there is all or nothing.
  longer = range(tree.depth + 1) if tree.is_chain else (0, tree.depth)

  def stops(prefix, draft):
    if may_draft(prefix, draft):
      return True
    if isinstance(policy, Confidence):
      return distribution(setting.given(prefix, draft)).max() < policy.threshold
    if isinstance(policy, ExitThreshold):
      *before, last = draft or (None,)
      before = setting.given(prefix, tuple(before))
      return bool(draft) and distribution(before)[last] < threshold(policy, history)
    known = (history[:n] for n in range(len(history)))
    if not (resumes or all(best_length(policy, longer, before) for before in known)):
      return True
    return len(draft) >= best_length(policy, longer, history)

  setting = dataclasses.replace(setting, stops=stops)
  while not has_ended(output, setting):
    number = len(history)
    named = lambda i, number=number: (number, i)
    draft, last, _, output = iterate(world, setting, output, named)
    children = (n for n, parent in enumerate(setting.tree, 1) if parent == last)
    accepted = len(draft.paths[last])
    is_cut = any(n in draft.distributions for n in children)
    history.append((accepted, accepted + is_cut, len(draft.tokens)))
  return output


def threshold(policy, history):
  """Below which probability a token is a draft's last, by what each draft came to."""
  rate, found = 0.0, policy.threshold
  for accepted, _, drafted in history:
    if not drafted:
      continue
    rate += (1 - policy.rate_decay) * (accepted / drafted - rate)
    step = policy.step if rate <= policy.goal else -policy.step
    found += (1 - policy.decay) * step
  return found


def best_length(policy, lengths, history):
  """The length of most tokens over time, given (accepted, tried, ..) of each draft."""
  weights = policy.decay ** np.arange(len(history))[::-1]
  accepted, tried = (weights @ [past[i] for past in history] for i in (0, 1))
  alpha = (policy.prior_alpha * policy.prior_weight + accepted) / (
    policy.prior_weight + tried
  )
  tokens = expected_tokens(alpha, np.array(lengths))
  return lengths[np.argmax(tokens / policy.seconds)]


def turns(path, gamma):
  """How many tokens each iteration of a path drafted."""
  numbers = sorted({number for number, _ in path.cells})
  return [sum(m == n and i < gamma for m, i in path.cells) for n in numbers]
