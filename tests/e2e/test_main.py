"""`python -m t5x.main` with a command's name."""

import runpy
import sys

import pytest

from tests.contract.conftest import runtime_only
from tests.e2e import runs


@runtime_only
def test_main_runs_the_named_command():
  process = runs.infer(module="t5x.main", flags=["--run_mode=infer"])
  assert process.returncode == 1
  assert "t5x.infer: expected --gin_file" in process.stderr


@runtime_only
@pytest.mark.parametrize("flags", [[], ["--run_mode=precompile"]])
def test_an_unknown_or_absent_mode_is_refused(flags, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["t5x.main", *flags])
  with pytest.raises(SystemExit):
    runpy.run_module("t5x.main", run_name="__main__", alter_sys=True)
