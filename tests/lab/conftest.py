"""The fixtures of `tests.benchmarks` for lab's commands."""

import functools

import jax
import numpy as np
import pytest

from benchmarks.timed import Timed
from lab.__main__ import main
from lab.hierarchy import command as hierarchy
from lab.model import devices
from lab.model import timed as pieces
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from tests.benchmarks import conftest as bench
from tests.t5x_bridge import tiny
from tests.training.conftest import saved

files = bench.files
pair = bench.pair
ran = functools.partial(bench.ran, main=main)


@pytest.fixture(scope="session")
def heads(tmp_path_factory):
  medusa = HeadsConfig("medusa", 2, bench.TARGET.emb_dim)
  configs = {"medusa": medusa, "parallel": HeadsConfig.of(bench.TARGET, 2)}
  return {
    name: saved(network_for(config), tmp_path_factory.mktemp(name))
    for name, config in configs.items()
  }


@pytest.fixture(scope="module")
def counted_clock():
  """Gives a call one second plus one second per repetition, free of noise."""

  def alternate(programs, inputs, warm=1):
    found = {}
    for key, program in programs.items():
      # Loops know their input and run once.
      used_inputs = inputs[:1] if isinstance(inputs, range) else inputs
      results = tuple(jax.block_until_ready(program(value)) for value in used_inputs)
      count = key[1] if isinstance(key, tuple) else 0
      found[key] = Timed(np.full(len(inputs), 1.0 + count), results)
    return found

  with pytest.MonkeyPatch.context() as patch:
    for module in (hierarchy, pieces):
      patch.setattr(module, "alternate", alternate)
    yield


@pytest.fixture(scope="session")
def domains(files, tmp_path_factory):
  root = tmp_path_factory.mktemp("domains")
  for name, seed in (("one", 1), ("two", 2)):
    (root / name).write_text("\n".join(tiny.sentences(6, seed)))
  flags = [f"--domain={name}={root / name}" for name in ("one", "two")]
  models = {name: files[name] for name in ("target", "vocabulary")}
  return [*bench.named(models, draft=files["draft"].partition("=")[2]), *flags]


@pytest.fixture
def small_device(monkeypatch):
  """Measures a device with a sum over a mebibyte and a product of 64 x 64 matrices."""
  monkeypatch.setattr(devices, "READ", 2**20)
  monkeypatch.setattr(devices, "SIDE", 64)
