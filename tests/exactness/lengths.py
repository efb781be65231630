"""How long drafts are under a policy, in float64: the oracle of adaptive gamma."""

import dataclasses

import numpy as np

from specdec_t5x.analysis.theory import expected_tokens
from specdec_t5x.core.tree import Tree
from specdec_t5x.decoding.widths import block_widths
from specdec_t5x.drafters.exit_threshold import ExitThreshold
from specdec_t5x.drafters.paying import Paying
from specdec_t5x.drafters.policies import Auto, Confidence
from tests.exactness.enumeration import has_ended, iterate


def decode(world, setting, policy, law):
  """As `enumeration.decode`, each draft's length by the policy.

  Args:
    world: decides every outcome.
    setting: what is decoded, with the longest gamma.
    policy: of `drafters.policies`, or `Paying`; its settings alone are used.
    law: what confidence is read from, as a function of what the draft's law is one of.
  """
  output, history, may_draft = (), [], setting.stops

  def stops(prefix, draft):
    if isinstance(policy, Paying):
      return may_draft(prefix, draft) or not pays(policy, setting, history)
    if isinstance(policy, Confidence):
      return law(setting.given(prefix, draft)).max() < policy.threshold
    if isinstance(policy, ExitThreshold):
      *before, last = draft or (None,)
      before = setting.given(prefix, tuple(before))
      return bool(draft) and law(before)[last] < threshold(policy, history)
    return len(draft) >= best_length(policy, len(setting.tree), history)

  setting = dataclasses.replace(setting, stops=stops)
  while not has_ended(output, setting):
    number = len(history)
    named = lambda i, number=number: (number, i)
    draft, accepted, _, output = iterate(world, setting, output, named)
    history.append((accepted, len(draft.tokens)))
  return output


def pays(policy, setting, history):
  """Whether drafts pay, and did after each of the iterations so far."""
  depth = Tree(setting.tree).depth
  prior = expected_tokens(policy.prior_alpha, depth) * policy.prior_weight
  tokens = np.cumsum([0, *(accepted + 1 for accepted, _ in history[1:])])
  calls = np.arange(len(tokens))
  found = (prior + tokens) / (policy.prior_weight + calls)
  return (found >= policy.seconds[1] / policy.seconds[0]).all()


def threshold(policy, history):
  """Below which probability a token is a draft's last, given (accepted, drafted)."""
  rate, found = 0.0, policy.threshold
  for accepted, drafted in history:
    rate += (1 - policy.rate_decay) * (accepted / drafted - rate)
    step = policy.step if rate <= policy.goal else -policy.step
    found += (1 - policy.decay) * step
  return found


def best_length(policy, gamma, history):
  """The length of most tokens over time, given (accepted, drafted) of each draft."""
  weights = policy.decay ** np.arange(len(history))[::-1]
  accepted, drafted = np.reshape(history, (-1, 2)).T
  tried = weights @ np.minimum(accepted + 1, drafted)
  accepted = weights @ accepted
  alpha = (policy.prior_alpha * policy.prior_weight + accepted) / (
    policy.prior_weight + tried
  )
  lengths = np.arange(gamma + 1)
  return np.argmax(expected_tokens(alpha, lengths) / seconds_of(policy, gamma))


def seconds_of(policy, gamma):
  """What an iteration takes that drafts 0, 1, .. gamma tokens."""
  if isinstance(policy, Auto):
    return policy.seconds
  lengths, widths = np.arange(gamma + 1), block_widths(gamma)
  blocks = [policy.block_costs[sum(w <= g for w in widths)] for g in lengths]
  return policy.draft_cost * lengths + blocks


def turns(path, gamma):
  """How many tokens each iteration of a path drafted."""
  numbers = sorted({number for number, _ in path.cells})
  return [sum(m == n and i < gamma for m, i in path.cells) for n in numbers]
