"""Two rows that share a draft length, in float64.

The iterations are `enumeration.iterate`, and the code uses only NumPy and Python.
"""

import dataclasses
import itertools

import numpy as np

from specdec_t5x.decoding.policies import CostAware
from tests.exactness.enumeration import Setting, World, has_ended, iterate
from tests.exactness.lengths import best_length

ROWS = 2


def product(*distributions: dict) -> dict:
  """Returns the distribution of independent outputs."""
  return {
    tuple(output for output, _ in each): np.prod([mass for _, mass in each])
    for each in itertools.product(*(d.items() for d in distributions))
  }


def decode(world: World, settings: list[Setting], policy: CostAware) -> tuple:
  """Runs iterations of both rows until the end; decisions are (row, number, i).

  Args:
    world: decides every outcome.
    settings: a setting per row.
    policy: chooses a length for both rows; only the policy's settings are used.
  """
  outputs = [()] * ROWS
  history = []
  while not all(map(has_ended, outputs, settings)):
    number = len(history)
    count = shared_length(policy, settings, history)
    history.append([(0, 0)] * ROWS)
    for row, setting in enumerate(settings):
      if has_ended(outputs[row], setting):
        continue

      def stops(prefix, draft, count=count, rests=setting.stops):
        return rests(prefix, draft) or len(draft) >= count

      def named(i, row=row, number=number):
        return (row, number, i)

      limited = dataclasses.replace(setting, stops=stops)
      draft, last, _, outputs[row] = iterate(world, limited, outputs[row], named)
      history[-1][row] = last, last + (last + 1 in draft.distributions)
  return tuple(outputs)


def shared_length(policy: CostAware, settings: list[Setting], history: list) -> int:
  """Returns the best draft length for both rows together."""
  counts = [np.sum(each, axis=0) for each in history]
  return best_length(policy, range(len(settings[0].tree) + 1), counts)
