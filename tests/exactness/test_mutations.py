"""The checks of exactness notice every known mistake.

Checks pass without faults, and fail with a fault.
"""

import functools

import jax
import pytest

from tests.exactness import draft_faults, faults  # noqa: F401, register the traps
from tests.exactness.checks import CHECKS
from tests.exactness.planting import TRAPS, Session

pytestmark = pytest.mark.slow

ORDER = list(dict.fromkeys(trap.check for trap in TRAPS))


@functools.lru_cache(maxsize=2)  # The traps of a check are adjacent.
def session(check):
  """Returns a session of a check with its faults, after a run without faults."""
  traps = [trap for trap in TRAPS if trap.check == check and not trap.alone]
  planted = Session(CHECKS[check], traps)
  planted.run(None)
  return planted


def test_every_fault_is_planted_once():
  assert len({str(trap) for trap in TRAPS}) == len(TRAPS) == 65
  assert set(ORDER) == set(CHECKS), "a check that never runs"


@pytest.mark.parametrize(
  "trap", sorted(TRAPS, key=lambda trap: ORDER.index(trap.check)), ids=str
)
def test_the_fault_is_noticed(trap, monkeypatch):
  if not trap.alone:
    planted = session(trap.check)
    with pytest.raises(AssertionError):
      planted.run(trap)
    return
  check = CHECKS[trap.check]
  check()
  monkeypatch.setattr(trap.place, trap.name, trap.fault)
  jax.clear_caches()
  try:
    with pytest.raises(AssertionError):
      check()
  finally:
    jax.clear_caches()
