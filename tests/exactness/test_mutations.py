"""Known traps, each planted: the checks of exactness must notice every one.

A trap that its check does not notice fails here; without a trap all checks pass.
"""

import jax
import pytest

from specdec_t5x.network import cache
from tests.exactness.checks import CHECKS
from tests.exactness.traps import TRAPS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_trap_the_check_passes(check):
  check()


@pytest.mark.parametrize(
  "trap", TRAPS, ids=lambda trap: f"{trap[2].__name__}-{trap[3].__name__}"
)
def test_the_trap_is_noticed(trap, monkeypatch, request):
  place, name, fault, check = trap
  monkeypatch.setattr(place, name, fault)
  if place is cache:  # Layers are traced once: this fault is for no other test.
    jax.clear_caches()
    request.addfinalizer(jax.clear_caches)
  with pytest.raises(AssertionError):
    check()
