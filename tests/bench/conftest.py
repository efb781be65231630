"""A tiny pair with its files, made once, and flags that name them."""

import numpy as np
import pytest

from specdec_t5x.bench import timed
from specdec_t5x.bench.paper import tables
from specdec_t5x.bench.timed import Timed
from tests.t5x_bridge import tiny

SHORT = ("--num-tokens=6", "--runs=3", "--max-length=12", "--num-inputs=3")


# Seconds of a repetition, and of what happens once a call, as a steady clock says.
STEADY = {
  "plain": (5.0, 20.0),
  "iteration": (12.0, 23.0),
  "draft": (2.0, 23.0),
  "scoring": (9.0, 23.0),
  "token": (5.0, 23.0),
  "encoder": (0.0, 19.0),
  "draft_encoder": (0.0, 3.0),
}


def steady(programs, inputs, warm=1):
  """Stands in for `alternate` where parts are timed: programs of so small a pair are
  lost in noise. tests/bench/test_costs.py times a larger pair's."""
  seconds = {}
  for key in programs:
    (_, name), count = key
    each, once = STEADY[name]
    seconds[key] = Timed(np.full(len(inputs), once + each * count), ())
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
  return {
    "target": tiny.save_t5x(root / "t", tiny.TARGET, seed=1),
    "draft": f"small={tiny.save_t5x(root / 'd', tiny.DRAFT, seed=2)}",
    "vocabulary": tiny.train_vocabulary(root),
    "inputs": str(text),
  }


@pytest.fixture(scope="session")
def one_pair(files):
  """Flags of the commands that take one draft, without a name."""
  given = {**files, "draft": files["draft"].partition("=")[2]}
  return [f"--{name}={path}" for name, path in given.items()]


@pytest.fixture(scope="session")
def pair_flags(files):
  return [f"--{name}={path}" for name, path in files.items()] + [*SHORT]


@pytest.fixture(scope="session")
def recorded(pair_flags, tmp_path_factory):
  """A folder with table 4 at gammas 1 and 3 and temperature 0; copy before writing."""
  folder = tmp_path_factory.mktemp("recorded")
  flags = ["--gammas", "1", "3", "--temperatures=0", f"--output={folder}"]
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(timed, "alternate", steady)
    assert tables.TABLE_4.main([*pair_flags, *flags]) == 0
  return folder
