"""A tiny pair with its files, made once, flags that name them, and commands run."""

import json
import shutil

import jax
import numpy as np
import pytest

from specdec_t5x.bench import costs, timed
from specdec_t5x.bench.__main__ import main
from specdec_t5x.bench.timed import Timed
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from tests.t5x_bridge import tiny
from tests.training.conftest import saved

TARGET = tiny.config(1, 16)
SHORT = ("--num-tokens=6", "--runs=3", "--max-length=12", "--num-inputs=3")
# Tables that are not called as their commands are.
FILES = {"decode": "bench"}


# Seconds of a repetition, and of what happens once a call, as a steady clock says.
STEADY = {
  "plain": (5.0, 20.0),
  "iteration": (12.0, 23.0),
  "draft": (2.0, 23.0),
  "token": (5.0, 23.0),
  "encoder": (0.0, 19.0),
  "draft_encoder": (0.0, 3.0),
}


def named(files, **more):
  """Returns flags by their names."""
  return [f"--{name}={value}" for name, value in {**files, **more}.items()]


def ran(command, folder, *flags, main=main):
  """Runs a command and returns the JSON of its table."""
  assert main([command, *flags, f"--output={folder}"]) == 0
  return json.loads((folder / f"{FILES.get(command, command)}.json").read_text())


def steady(programs, inputs, warm=1):
  """Stands in for `alternate` where parts are timed: programs of so small a pair are
  lost in noise. In tests/bench/test_costs.py they run."""
  seconds = {}
  for key in programs:
    name, count = key
    each, once = STEADY[name]
    seconds[key] = Timed(np.full(len(inputs), once + each * count), ())
  return seconds


@pytest.fixture(scope="module")
def steady_parts():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(costs, "alternate", steady)
    yield


def counted(programs, inputs, warm=1):
  """Stands in for `alternate`: a call takes a second, and one more a repetition.

  So nothing is lost in noise. Loops, which know their input, run once.
  """
  some = inputs[:1] if isinstance(inputs, range) else inputs
  found = {}
  for key, program in programs.items():
    results = tuple(jax.block_until_ready(program(value)) for value in some)
    count = key[1] if isinstance(key, tuple) else 0
    found[key] = Timed(np.full(len(inputs), 1.0 + count), results)
  return found


@pytest.fixture(scope="module")
def counted_clock():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(timed, "alternate", counted)
    yield


@pytest.fixture(scope="session")
def files(tmp_path_factory):
  root = tmp_path_factory.mktemp("pair")
  text = root / "lines.txt"
  text.write_text("\n".join(tiny.sentences(3, seed=4)))
  return {
    "target": tiny.save_t5x(root / "t", TARGET, seed=1),
    "draft": f"small={tiny.save_t5x(root / 'd', tiny.DRAFT, seed=2)}",
    "vocabulary": tiny.train_vocabulary(root),
    "inputs": str(text),
  }


@pytest.fixture(scope="session")
def pair(files):
  """Flags of a target, a draft and inputs."""
  return named(files)


@pytest.fixture(scope="session")
def heads(tmp_path_factory):
  """The checkpoints of two kinds of heads."""
  configs = {
    "hydra": HeadsConfig("hydra", 2, TARGET.emb_dim),
    "parallel": HeadsConfig.of(TARGET, 2),
  }
  return {
    name: saved(network_for(config), tmp_path_factory.mktemp(name))
    for name, config in configs.items()
  }


@pytest.fixture(scope="session")
def pair_flags(pair):
  return [*pair, *SHORT]


@pytest.fixture(scope="session")
def recorded(pair_flags, tmp_path_factory):
  """A folder with table 4 at gammas 1 and 3 and temperature 0; copy before writing."""
  folder = tmp_path_factory.mktemp("recorded")
  flags = ["--gammas", "1", "3", "--temperatures=0"]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(costs, "alternate", steady)
    ran("table4", folder, *pair_flags, *flags)
  return folder


@pytest.fixture
def measured(recorded, tmp_path):
  """A copy of `recorded`."""
  return shutil.copytree(recorded, tmp_path / "measured")
