"""A run of two tasks with a learning draft, killed at any point and then resumed.

A kill leaves the files on disk. The tests therefore copy one complete run at every
point of a possible kill and resume the copies in new folders.
"""

import itertools
import shutil

import jax
import orbax.checkpoint as ocp
import pytest
import t5x

import specdec_t5x
from specdec_t5x.contrib.online import run as online_run
from specdec_t5x.t5x_bridge.restore import T5XParameters
from tests.e2e import mixtures, runs
from tests.e2e.test_online import FAST, ONLINE

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not hasattr(t5x, "PROVIDER"), reason="copied within the process"),
]

if hasattr(t5x, "PROVIDER"):
  from t5x.inference_files import ChunkFiles
else:
  ChunkFiles = None

CHUNKS = 6  # Three per task.
STEPS = 16  # 3, 3 and 2 steps per task.
# The last call before the kill: class, method, whether the call ended, the number of
# calls, and the tested calls.
MOMENTS = {
  "decoded": (online_run.Course, "learn", False, CHUNKS, [4]),
  "half a step saved": (T5XParameters, "save", False, CHUNKS, [0]),
  "parameters written": (T5XParameters, "save", True, CHUNKS, [4]),
  "step kept": (online_run.Course, "learn", True, CHUNKS, [2]),
  "chunk written": (ChunkFiles, "write", True, CHUNKS, [3]),
  "task merged": (ChunkFiles, "remove", False, 2, [1]),
}
KILLS = [f"{name} {i}" for name, (*_, tested) in MOMENTS.items() for i in tested]


@pytest.fixture(scope="module")
def learning(infer, pair):
  """Returns a function that runs both tasks into a folder."""
  mixture = mixtures.gin_file(pair)
  sampled = {"TEMPERATURE": 1.0, "LEARNING_RATE": 0.02}
  return lambda output: infer(output, ONLINE, mixture, **sampled, **FAST)


@pytest.fixture(scope="module")
def whole(learning, tmp_path_factory):
  """Returns the complete run; the copies are in the same folder."""
  root = tmp_path_factory.mktemp("kills")

  def copy(name):
    return shutil.copytree(root / "whole", root / name)

  with pytest.MonkeyPatch.context() as patch:
    for name, (owner, function, ended, *_) in MOMENTS.items():
      before = getattr(owner, function)
      patch.setattr(owner, function, copied(before, ended, name, copy))
    learning(root / "whole")
  left = {path.name for path in root.iterdir()}
  times = [(name, i) for name, (*_, count, _) in MOMENTS.items() for i in range(count)]
  assert left == {"whole", *(f"{name} {i}" for name, i in times)}
  return root / "whole"


def copied(function, ended, name, copy):
  """Wraps a function to copy the run before or after the function's work."""
  calls = itertools.count()

  def call(*args, **kwargs):
    if not ended:
      copy(f"{name} {next(calls)}")
    result = function(*args, **kwargs)
    if ended:
      copy(f"{name} {next(calls)}")
    return result

  return call


@pytest.mark.parametrize("kill", KILLS)
def test_a_resumed_run_equals_the_complete_run(whole, learning, kill):
  killed = whole.parent / kill
  learning(killed)
  for result in whole.glob("*.jsonl-*"):
    assert (killed / result.name).read_bytes() == result.read_bytes()
  statistics = [runs.summary(folder)["statistics"] for folder in (killed, whole)]
  assert statistics[0] == statistics[1]
  assert left_in(killed) == left_in(whole)
  assert f"draft/checkpoint_{STEPS}" in left_in(whole)
  same = jax.tree.map(
    lambda a, b: bool((a == b).all()), learned_in(killed), learned_in(whole)
  )
  assert all(jax.tree.leaves(same))


def left_in(output):
  """Returns the names of results, chunks, checkpoints and checkpoint files."""
  paths = {str(path.relative_to(output)) for path in output.rglob("*")}
  return {path for path in paths if "/optimizer_" not in path}


def learned_in(output):
  """Returns the draft's parameters and the optimizer's state."""
  draft = output / "draft"
  params = specdec_t5x.load_model(str(draft / f"checkpoint_{STEPS}")).params
  with ocp.StandardCheckpointer() as reader:
    return params, reader.restore(draft / f"optimizer_{STEPS}")
