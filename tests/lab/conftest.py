"""The fixtures of `tests.benchmarks` for lab's commands."""

import functools

import pytest

from benchmarks import timed
from lab.__main__ import main
from lab.hierarchy import command as hierarchy
from lab.model import devices
from lab.model import timed as pieces
from tests.benchmarks import conftest as bench
from tests.t5x_bridge import tiny

files = bench.files
heads = bench.heads
pair = bench.pair
ran = functools.partial(bench.ran, main=main)


@pytest.fixture(scope="module")
def counted_clock():
  with pytest.MonkeyPatch.context() as patch:
    for module in (timed, hierarchy, pieces):
      patch.setattr(module, "alternate", bench.counted)
    yield


@pytest.fixture(scope="session")
def domains(files, tmp_path_factory):
  """Returns the flags of a pair that serves two domains."""
  root = tmp_path_factory.mktemp("domains")
  for name, seed in (("one", 1), ("two", 2)):
    (root / name).write_text("\n".join(tiny.sentences(6, seed)))
  flags = [f"--domain={name}={root / name}" for name in ("one", "two")]
  models = {name: files[name] for name in ("target", "vocabulary")}
  return [*bench.named(models, draft=files["draft"].partition("=")[2]), *flags]


@pytest.fixture
def small_device(monkeypatch):
  """Measures a device with a sum over a mebibyte and a product of 64 x 64 matrices."""
  monkeypatch.setattr(devices, "_READ", 2**20)
  monkeypatch.setattr(devices, "_SIDE", 64)
