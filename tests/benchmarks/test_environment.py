"""A measurement's record of the machine and the code."""

import shutil

import pytest

from benchmarks import environment
from benchmarks.environment import ROOT

DECODE_OR_TIME = (
  "specdec_t5x/core/rules/token",
  "specdec_t5x/decoding/loop",
  "specdec_t5x/policies",
  "specdec_t5x/native/distributions",
  "benchmarks/timed",
)


def test_a_cell_records_the_digest_of_the_running_code():
  assert environment.machine()["code"] == environment.code(ROOT)


def test_only_code_that_decodes_or_times_changes_the_digest(tmp_path):
  for package in ("specdec_t5x", "benchmarks"):
    shutil.copytree(ROOT / package, tmp_path / package)
  # The cache is skipped, because the folder changes.
  digest = environment.code.__wrapped__
  before = environment.code(ROOT)
  assert digest(tmp_path) == before
  for module in DECODE_OR_TIME:
    with (tmp_path / f"{module}.py").open("a") as file:
      file.write("MORE = 1\n")
    after = digest(tmp_path)
    assert after != before, module
    before = after
  for module in ("benchmarks/table", "specdec_t5x/data/tasks"):
    (tmp_path / f"{module}.py").write_text("")
  assert digest(tmp_path) == before


@pytest.mark.parametrize("pattern", environment.SOURCES)
def test_every_source_pattern_matches_a_file(pattern):
  assert list(ROOT.glob(pattern))
