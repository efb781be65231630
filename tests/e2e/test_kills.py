"""A sampled run of two tasks, killed between writes and then resumed.

A kill leaves the files on disk. The tests therefore copy one complete run at every
point of a possible kill and resume the copies in new folders.
"""

import itertools
import shutil

import pytest
import t5x

from tests.e2e import mixtures, runs

pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not hasattr(t5x, "PROVIDER"), reason="copied within the process"),
]

if hasattr(t5x, "PROVIDER"):
  from t5x.inference_files import ChunkFiles
else:
  ChunkFiles = None

# The last call before the kill: method, whether the call ended, the number of calls,
# and the tested call. There are three chunks per task.
MOMENTS = {
  "chunk decoded": ("write", False, 6, 4),
  "chunk written": ("write", True, 6, 3),
  "task merged": ("remove", False, 2, 1),
}


@pytest.fixture(scope="module")
def sampled(infer, pair):
  """Returns a function that runs both tasks into a folder."""
  settings = {"TEMPERATURE": 1.0, "READ_AHEAD": 1, "infer.checkpoint_period": 1}
  return lambda output: infer(output, mixtures.gin_file(pair), **settings)


@pytest.fixture(scope="module")
def whole(sampled, tmp_path_factory):
  """Returns the complete run; the copies are in the same folder."""
  root = tmp_path_factory.mktemp("kills")

  def copy(name):
    return shutil.copytree(root / "whole", root / name)

  with pytest.MonkeyPatch.context() as patch:
    for name, (method, ended, *_) in MOMENTS.items():
      before = getattr(ChunkFiles, method)
      patch.setattr(ChunkFiles, method, copied(before, ended, name, copy))
    sampled(root / "whole")
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


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_resumed_run_equals_the_complete_run(whole, sampled, moment):
  killed = whole.parent / f"{moment} {MOMENTS[moment][-1]}"
  sampled(killed)
  for result in whole.glob("*.jsonl-*"):
    assert (killed / result.name).read_bytes() == result.read_bytes()
  statistics = [runs.summary(folder)["statistics"] for folder in (killed, whole)]
  assert statistics[0] == statistics[1]
  names = [{str(p.relative_to(x)) for p in x.rglob("*")} for x in (killed, whole)]
  assert names[0] == names[1]
