"""`scripts/bench_accelerator.sh` at tiny size, with JAX and Flax alone."""

import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace as Of

import pytest

from specdec_t5x.bench.accelerator import command
from specdec_t5x.bench.accelerator.profile import summed

ROOT = pathlib.Path(__file__).parents[2]
SIZES = "--targets tiny --drafts tiny --gammas 2 1 --batches 1 2 --dtype float32"
SHORT = "--input-length 8 --output-length 30 --runs 2"
# Importing any of them is an error in the script's process.
BARRED = "tensorflow seqio t5x gin optax orbax tqdm sentencepiece"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
  folder = tmp_path_factory.mktemp("accelerator")
  for name in BARRED.split():
    (folder / f"{name}.py").write_text(f"raise ImportError({name!r})\n")
  run = lambda *more: subprocess.run(
    ["scripts/bench_accelerator.sh", *SIZES.split(), *SHORT.split(), *more],
    cwd=ROOT,
    env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(folder)},
    capture_output=True,
    text=True,
  )
  output = folder / "out"
  ran = run("--output", str(output))
  assert ran.returncode == 0, ran.stderr[-4000:]
  return run, output


def test_everything_is_measured_with_jax_and_flax_alone(ran):
  _, output = ran
  found = json.loads((output / "accelerator.json").read_text())
  assert {(r["batch"], r["temperature"], r["gamma"]) for r in found["rows"]} == {
    (batch, t, gamma) for batch in (1, 2) for t in ("0", "1") for gamma in (1, 2)
  }
  for row in found["rows"]:
    # So small a pair's times may be lost in noise: below nothing, even.
    assert {"iteration", "plain", "from_loops"} <= set(row)
    # An oracle's acceptance is set; samples have a distribution of their own.
    assert ("speed" in row) == (row["temperature"] == "0")
    assert row.get("identical", "2/2") == "2/2"
  assert all(row["roofline"] > 0 and "ms" in row for row in found["pieces"])
  assert found["profile"][0]["ms"] > 0
  assert "not measured" not in (output / "accelerator.md").read_text()


def test_what_is_kept_is_not_measured_again_and_no_cell_starts_too_late(ran):
  run, output = ran
  lines = (output / "cells.jsonl").read_text()
  again = run("--output", str(output))
  assert (output / "cells.jsonl").read_text() == lines
  assert "gamma" not in again.stderr
  late = run("--output", str(output.parent / "late"), "--minutes", "0")
  assert late.returncode == 0
  assert "not measured" in late.stdout
  assert not (output.parent / "late" / "cells.jsonl").exists()


def test_command_buffers_are_a_gpu_s_alone(monkeypatch):
  parser = command.COMMAND.parser()
  args = parser.parse_args([*SIZES.split(), *SHORT.split(), "--output=x"])
  named = lambda: [
    key["buffers"] for key, _ in command._cells(args) if "buffers" in key
  ]
  assert named() == []
  monkeypatch.setattr("jax.default_backend", lambda: "gpu")
  assert named() == ["as it is", "none", "while", "while, conditional"]


def test_options_of_command_buffers_are_known_to_the_compiler():
  # Any platform's compiler reads them, and refuses names that it does not know.
  import jax

  lowered = jax.jit(lambda x: x + 1).lower(1.0)
  for options in command.BUFFERS["gpu"].values():
    lowered.compile(compiler_options=options or None)
  with pytest.raises(jax.errors.JaxRuntimeError, match="not a valid enum"):
    lowered.compile(compiler_options={command._NAME: "+WHILE"})


def test_a_gpu_s_time_is_that_of_its_kernels():
  event = lambda name, ns: Of(name=name, duration_ns=ns)
  kernels = Of(name="Stream #7", events=[event("gemm", 3e6), event("add", 1e6)])
  modules = Of(name="XLA Modules", events=[event("jit_run", 9e6)])
  again = Of(name="XLA Ops", events=[event("gemm", 3e6)])
  device = Of(name="/device:GPU:0", lines=[modules, again, kernels])
  host = Of(name="/host:CPU", lines=[Of(name="tf_XLA", events=[event("wait", 9e6)])])
  rows = summed([host, device])
  assert [(row["name"], row["count"], row["ms"]) for row in rows] == [
    ("gemm", 1, 3.0),
    ("add", 1, 1.0),
  ]
  assert rows[0]["share"] == 0.75
