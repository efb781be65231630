"""What tells one measurement's machine and code from another's."""

import pathlib
import shutil

import pytest

import specdec_t5x
from specdec_t5x.bench import environment

PACKAGE = pathlib.Path(specdec_t5x.__file__).parent
DECODE_OR_TIME = (
  "core/token",
  "decoding/step",
  "policies",
  "native/distributions",
  "bench/timed",
)


def test_a_cell_is_of_the_code_that_runs():
  assert environment.machine()["code"] == environment.code(PACKAGE)


def test_code_that_decodes_or_times_changes_the_digest_and_no_other(tmp_path):
  copy = shutil.copytree(PACKAGE, tmp_path / "a")
  digest = environment.code.__wrapped__  # Of a folder that changes.
  before = environment.code(PACKAGE)
  assert digest(copy) == before
  for module in DECODE_OR_TIME:
    with (copy / f"{module}.py").open("a") as file:
      file.write("MORE = 1\n")
    now = digest(copy)
    assert now != before, module
    before = now
  for module in ("bench/table", "data/tasks"):
    (copy / f"{module}.py").write_text("")
  assert digest(copy) == before


@pytest.mark.parametrize("pattern", environment.SOURCES)
def test_every_source_is_there(pattern):
  assert list(PACKAGE.glob(pattern))
