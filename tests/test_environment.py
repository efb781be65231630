"""The report of `python -m specdec_t5x`, and platforms that are not available."""

import os
import runpy
import subprocess
import sys

import pytest

from specdec_t5x import environment
from specdec_t5x.demo import embedded
from specdec_t5x.native import library
from tests import processes
from tests.real_data import ROOT


@pytest.mark.parametrize(("argument", "code"), [("--help", 0), ("nonsense", 2)])
def test_arguments_are_not_ignored(argument, code, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["specdec_t5x", argument])
  with pytest.raises(SystemExit) as ended:
    runpy.run_module("specdec_t5x", run_name="__main__")
  assert ended.value.code == code
  printed = "".join(capsys.readouterr())
  assert ("t5x.infer" in printed) == (code == 0)


def facts():
  return dict(line.split(maxsplit=1) for line in environment.report())


@pytest.fixture
def kernels_are_new(monkeypatch):
  """Forgets whether there are kernels, before and after the test."""
  monkeypatch.delenv("SPECDEC_T5X_CACHE", raising=False)
  library.problem.cache_clear()
  yield
  library.problem.cache_clear()


@pytest.mark.usefixtures("kernels_are_new")
def test_the_report_says_why_there_are_no_kernels(tmp_path, monkeypatch, recwarn):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  monkeypatch.setenv("CXX", str(tmp_path / "no_compiler"))
  (kernels,) = (x for x in environment.report() if x.startswith("CPU kernels"))
  assert "missing: the build failed: " in kernels
  assert "no_compiler" in kernels
  assert not recwarn


@pytest.mark.parametrize(
  ("code", "why"),
  [
    ("import clu_that_is_not_there", "ModuleNotFoundError: No module named 'clu_that"),
    ("raise TypeError('Descriptors cannot be created')", "TypeError: Descriptors ca"),
  ],
)
def test_a_broken_t5x_is_reported(tmp_path, monkeypatch, capfd, code, why):
  (tmp_path / "t5x").mkdir()
  (tmp_path / "t5x" / "__init__.py").write_text(f"{code}\n")
  monkeypatch.syspath_prepend(tmp_path)
  monkeypatch.delitem(sys.modules, "t5x", raising=False)
  assert facts()["t5x"].startswith(f"missing: {why}")


@pytest.mark.parametrize("platform", ["cpu", "no_such_platform"])
def test_the_command_runs_from_any_directory_and_is_quiet(platform, tmp_path):
  paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
  process = subprocess.run(
    [sys.executable, "-m", "specdec_t5x"],
    cwd=tmp_path,
    env={**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": platform},
    capture_output=True,
    text=True,
    check=False,
  )
  assert (process.returncode, process.stderr) == (0, "")
  found = process.stdout
  for name in ("python", "specdec_t5x", "jax", "tensorflow", "t5x"):
    assert f"\n{name} " in f"\n{found}"
  assert "\n  python -m t5x.infer " in found
  if platform == "cpu":
    assert "\ndevices " in found
    assert " x cpu cpu\n" in found
    assert "\nGPU kernels       missing: the devices are cpus" in found
  else:
    assert "missing: JAX finds no platform 'no_such_platform'" in found


# ---- Platforms that are not available. ----

_LOAD = f"import specdec_t5x; specdec_t5x.load_model({embedded.target()!r})"
COMMANDS = {
  "python": ["-c", _LOAD],
  "infer": [
    *("-m", "t5x.infer", "--gin_file=configs/spec_ende.gin"),
    "--gin.INFER_OUTPUT_DIR='unused'",
  ],
  "train": ["-m", "specdec_t5x.train", "--gin_file=configs/train/draft.gin"],
  "benchmarks": ["-m", "benchmarks", "machine", "--output=unused"],
}


@pytest.mark.parametrize(
  ("name", "platform"),
  [
    ("python", "cuda"),
    ("infer", "gpu"),
    ("train", "tpu"),
    ("benchmarks", "typo,cuda"),
  ],
)
def test_an_unavailable_platform_is_reported_in_one_sentence(name, platform):
  process = processes.finished(*COMMANDS[name], JAX_PLATFORMS=platform)
  assert process.returncode == 1
  message = f"platform {platform!r}, the value of JAX_PLATFORMS, but finds 'cpu'"
  [line] = [line for line in process.stderr.splitlines() if message in line]
  assert "Set JAX_PLATFORMS=cpu" in line
  # No frame of JAX; Python 3.13 prints three lines and more per frame.
  assert process.stderr.count('  File "') < 6
