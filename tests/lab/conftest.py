"""What `tests.bench` has, with lab's commands and their clocks."""

import functools

import pytest

from lab.__main__ import main
from lab.hierarchy import command as hierarchy
from lab.model import devices
from lab.model import timed as pieces
from specdec_t5x.bench import timed
from tests.bench import conftest as bench

files, pair = bench.files, bench.pair
ran = functools.partial(bench.ran, main=main)


@pytest.fixture(scope="module")
def counted_clock():
  with pytest.MonkeyPatch.context() as patch:
    for module in (timed, hierarchy, pieces):
      patch.setattr(module, "alternate", bench.counted)
    yield


@pytest.fixture
def small_device(monkeypatch):
  """Measures a device by a sum over a mebibyte and a product of 64 squared."""
  monkeypatch.setattr(devices, "_READ", 2**20)
  monkeypatch.setattr(devices, "_SIDE", 64)
