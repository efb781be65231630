"""What tells one measurement's machine and code from another's."""

import pathlib
import shutil

import pytest

import specdec_t5x
from specdec_t5x.bench import environment

PACKAGE = pathlib.Path(specdec_t5x.__file__).parent


def test_a_cell_is_of_the_code_that_runs():
  assert environment.machine()["code"] == environment.code(PACKAGE)


@pytest.mark.parametrize(
  "module",
  ["core/token", "decoding/step", "policies", "native/distributions", "bench/timed"],
)
def test_other_code_that_decodes_or_times_has_another_digest(module, tmp_path):
  before = environment.code(PACKAGE)
  copy = shutil.copytree(PACKAGE, tmp_path / "a", ignore=shutil.ignore_patterns("data"))
  with (copy / f"{module}.py").open("a") as file:
    file.write("MORE = 1\n")
  assert environment.code(copy) != before


def test_other_code_has_the_same_digest(tmp_path):
  copy = shutil.copytree(PACKAGE, tmp_path / "a")
  (copy / "bench" / "table.py").write_text("")
  (copy / "data" / "tasks.py").write_text("")
  assert environment.code(copy) == environment.code(PACKAGE)


@pytest.mark.parametrize("pattern", environment.SOURCES)
def test_every_source_is_there(pattern):
  assert list(PACKAGE.glob(pattern))
