"""A measurement's record of the machine and the code."""

import shutil

from benchmarks import environment
from benchmarks.environment import ROOT


def test_only_code_that_decodes_or_times_changes_the_digest(tmp_path):
  for package in ("specdec_t5x", "benchmarks"):
    shutil.copytree(ROOT / package, tmp_path / package)
  # The cache is skipped, because the folder changes.
  digest = environment.code.__wrapped__
  before = environment.machine()["code"]
  assert digest(tmp_path) == before
  modules = ["core/token", "decoding/step", "policies", "native/distributions"]
  for module in (*(f"specdec_t5x/{name}" for name in modules), "benchmarks/timed"):
    with (tmp_path / f"{module}.py").open("a") as file:
      file.write("MORE = 1\n")
    after = digest(tmp_path)
    assert after != before, module
    before = after
  for module in ("benchmarks/table", "specdec_t5x/data/tasks"):
    (tmp_path / f"{module}.py").write_text("")
  assert digest(tmp_path) == before
  assert all(list(ROOT.glob(pattern)) for pattern in environment.SOURCES)
