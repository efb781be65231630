"""The expected speedup of drafts by measured times of iterations.

`choices` are the draft lengths that the times belong to (`contracts.lengths_of`).
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from specdec_t5x.decoding.policies import CostAware

# The least expected speedup at which drafting is tried: a program that drafts takes
# longer to trace, and most drafts are accepted less often than the prior says.
_WORTH = 1.2


def pays(policy: CostAware, choices: tuple[int, ...]) -> bool:
  """Returns whether drafting is worth a try; nothing is learned without drafts."""
  return not policy.seconds or speedup(policy, policy.prior_alpha, choices) > _WORTH


def speedup(policy: CostAware, alpha: float, choices: tuple[int, ...]) -> float:
  """Returns the speedup over plain decoding of the best draft that is not empty."""
  tokens = list(itertools.accumulate(alpha**n for n in range(choices[-1] + 1)))
  return best_speedup(policy, [tokens[n] for n in choices])


def best_speedup(policy: CostAware, tokens: Sequence[float]) -> float:
  """Returns the best speedup over plain decoding of drafts that are not empty.

  Args:
    policy: the policy with times.
    tokens: the tokens per iteration for each draft length of the times.
  """
  without_drafter, with_drafter = policy.prepare
  plain = policy.seconds[0] + without_drafter
  return max(
    plain / (seconds / count + with_drafter)
    for count, seconds in zip(tokens[1:], policy.seconds[1:], strict=True)
  )


def outlook(policy: CostAware, choices: tuple[int, ...]) -> str:
  """Returns a line about the expected speedup on this device at this batch size.

  >>> outlook(CostAware((1.0, 1.4, 1.8)), (0, 1, 2))
  'Drafts pay above an acceptance rate (alpha) of 0.41; 0.75 gives a speedup of 1.28.'
  >>> print(outlook(CostAware((1.0, 1.9, 2.9)), (0, 1, 2)))
  Decoding plainly: at an acceptance rate (alpha) of 0.75, drafts would make \
decoding 0.92 times as fast. Drafts are tried from 1.2 times on.
  """
  expected = speedup(policy, policy.prior_alpha, choices)
  if not pays(policy, choices):
    return (
      f"Decoding plainly: at an acceptance rate (alpha) of {policy.prior_alpha:.2g}, "
      f"drafts would make decoding {expected:.2f} times as fast. Drafts are tried from "
      f"{_WORTH} times on."
    )
  alphas = [i / 100 for i in range(1, 100)]
  first = next(alpha for alpha in alphas if speedup(policy, alpha, choices) > 1)
  return (
    f"Drafts pay above an acceptance rate (alpha) of {first:.2f}; "
    f"{policy.prior_alpha:.2g} gives a speedup of {expected:.2f}."
  )


def speedup_of_run(
  policy: CostAware,
  choices: tuple[int, ...],
  counts: Mapping[str, float],
  output_length: float,
) -> float | None:
  """Returns the speedup of a run over plain decoding.

  The result is None unless this process measured the times. Real iterations take longer
  than timed iterations, with and without drafts alike.

  Args:
    policy: the policy of the run, with measured times.
    choices: the draft lengths.
    counts: the sums over all outputs: tokens, target_calls, drafted, examples.
    output_length: the number of tokens that share the seconds of `policy.prepare`.
  """
  if policy.is_kept or not counts["target_calls"]:
    return None
  drafted = counts["drafted"] / counts["target_calls"]
  of_call = float(np.interp(drafted, choices, policy.seconds))
  starts = np.array(policy.prepare) * output_length * counts["examples"]
  without_drafts = policy.seconds[0] * counts["tokens"] + starts[0]
  return without_drafts / (of_call * counts["target_calls"] + starts[1])
