"""Fixtures: the files of a tiny pair, flags with the files, and finished commands."""

import json
import shutil

import jax
import numpy as np
import pytest

from benchmarks import timed
from benchmarks.__main__ import main
from benchmarks.timed import Timed
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from tests.t5x_bridge import tiny
from tests.training.conftest import saved

TARGET = tiny.config(1, 16)
SHORT = ("--num-tokens=6", "--runs=3", "--max-length=12", "--num-inputs=3")
# The seconds per repetition and the fixed seconds per call on a steady clock: of the
# plain loop, of iterations, and of iterations that draft twice.
STEADY = {"plain": (5.0, 20.0), 0: (12.0, 23.0), 1: (14.0, 23.0)}


def named(files, **more):
  """Returns flags from names and values."""
  return [f"--{name}={value}" for name, value in {**files, **more}.items()]


def ran(command, folder, *flags, main=main):
  """Runs a command and returns the JSON of the table."""
  assert main([command, *flags, f"--output={folder}"]) == 0
  return json.loads((folder / f"{command}.json").read_text())


def steady(programs, inputs, warm=1):
  """Stands in for `alternate` if parts are timed: noise hides the times of a tiny pair.

  The programs run in tests/benchmarks/test_timed.py.
  """
  seconds = {}
  for name, count in programs:
    each, once = STEADY[name if name == "plain" else name[1]]
    seconds[name, count] = Timed(np.full(len(inputs), once + each * count), ())
  return seconds


@pytest.fixture(scope="module")
def steady_parts():
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(timed, "alternate", steady)
    yield


def counted(programs, inputs, warm=1):
  """Stands in for `alternate`: a call takes one second plus one second per repetition.

  The times are thus free of noise. Loops know their input and run once.
  """
  used_inputs = inputs[:1] if isinstance(inputs, range) else inputs
  timed_programs = {}
  for key, program in programs.items():
    results = tuple(jax.block_until_ready(program(value)) for value in used_inputs)
    count = key[1] if isinstance(key, tuple) else 0
    timed_programs[key] = Timed(np.full(len(inputs), 1.0 + count), results)
  return timed_programs


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
  pair = tiny.save_pair(root, TARGET)
  return {**pair, "draft": f"small={pair['draft']}", "inputs": str(text)}


@pytest.fixture(scope="session")
def pair(files):
  """Returns the flags of a target, a draft and inputs."""
  return named(files)


@pytest.fixture(scope="session")
def heads(tmp_path_factory):
  """Returns the checkpoints of two kinds of heads."""
  configs = {
    "medusa": HeadsConfig("medusa", 2, TARGET.emb_dim),
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
  """Returns a folder with table 4 at gammas 1 and 3; copy the folder before writing."""
  folder = tmp_path_factory.mktemp("recorded")
  flags = ["--gammas", "1", "3", "--temperatures=0"]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(timed, "alternate", steady)
    ran("table4", folder, *pair_flags, *flags)
  return folder


@pytest.fixture
def measured(recorded, tmp_path):
  """Returns a copy of `recorded`."""
  return shutil.copytree(recorded, tmp_path / "measured")
