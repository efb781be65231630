"""A measurement's record of the machine and the code."""

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


def test_a_cell_records_the_digest_of_the_running_code():
  assert environment.machine()["code"] == environment.code(PACKAGE)


def test_only_code_that_decodes_or_times_changes_the_digest(tmp_path):
  copy = shutil.copytree(PACKAGE, tmp_path / "a")
  # The cache is skipped, because the folder changes.
  digest = environment.code.__wrapped__
  before = environment.code(PACKAGE)
  assert digest(copy) == before
  for module in DECODE_OR_TIME:
    with (copy / f"{module}.py").open("a") as file:
      file.write("MORE = 1\n")
    after = digest(copy)
    assert after != before, module
    before = after
  for module in ("bench/table", "data/tasks"):
    (copy / f"{module}.py").write_text("")
  assert digest(copy) == before


@pytest.mark.parametrize("pattern", environment.SOURCES)
def test_every_source_pattern_matches_a_file(pattern):
  assert list(PACKAGE.glob(pattern))
