"""Fixtures: the files of a tiny pair, flags with the files, and finished commands."""

import json

import numpy as np
import pytest

from benchmarks import timed
from benchmarks.__main__ import main
from benchmarks.timed import Timed
from tests.t5x_bridge import tiny

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

  The programs run in tests/benchmarks/test_measure.py.
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


@pytest.fixture(scope="session")
def files(tmp_path_factory):
  root = tmp_path_factory.mktemp("pair")
  text = root / "lines.txt"
  text.write_text("\n".join(tiny.sentences(3, seed=4)))
  pair = tiny.save_pair(root, TARGET)
  return {**pair, "draft": f"small={pair['draft']}", "inputs": str(text)}


@pytest.fixture(scope="session")
def pair(files):
  return named(files)
