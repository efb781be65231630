"""`scripts/bench_accelerator.sh` at tiny size, with JAX and Flax alone."""

import json
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace as Of

import pytest

from specdec_t5x.bench.__main__ import main
from specdec_t5x.bench.accelerator import command
from specdec_t5x.bench.accelerator.profile import summed
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.environment import machine

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = (
  "--targets tiny --drafts tiny --gammas 2 --batches 1 --dtype float32 "
  "--input-length 8 --output-length 12 --runs 2"
)
# Importing any of them is an error in the script's process.
BARRED = "tensorflow seqio t5x gin optax orbax tqdm sentencepiece"


def parsed(*flags):
  return command.COMMAND.parser().parse_args([*FLAGS.split(), "--output=x", *flags])


def test_everything_is_measured_with_jax_and_flax_alone_and_once(
  small_device, tmp_path, capsys
):
  output = tmp_path / "out"
  # The script goes on after its first cell, which is of a small device.
  key, measure_device = next(command._cells(parsed()))
  Cells(output).add({**key, "runs": 2, **machine()}, measure_device())
  for name in BARRED.split():
    (tmp_path / f"{name}.py").write_text(f"raise ImportError({name!r})\n")
  script = subprocess.run(
    ["scripts/bench_accelerator.sh", *FLAGS.split(), f"--output={output}"],
    cwd=ROOT,
    env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)},
    capture_output=True,
    text=True,
  )
  assert script.returncode == 0, script.stderr[-4000:]
  found = json.loads((output / "accelerator.json").read_text())
  assert {row["temperature"] for row in found["rows"]} == {"0", "1"}
  for row in found["rows"]:
    # So small a pair's times may be lost in noise: below nothing, even.
    assert {"iteration", "plain", "from_loops"} <= set(row)
    # An oracle's acceptance is set; samples have a distribution of their own.
    assert ("speed" in row) == (row["temperature"] == "0")
    assert row.get("identical", "2/2") == "2/2"
  assert all(row["roofline"] > 0 and "ms" in row for row in found["pieces"])
  assert found["profile"][0]["ms"] > 0
  assert "not measured" not in (output / "accelerator.md").read_text()
  # What is kept is not measured again.
  lines = (output / "cells.jsonl").read_text()
  assert main(["accelerator", *FLAGS.split(), f"--output={output}"]) == 0
  assert (output / "cells.jsonl").read_text() == lines
  assert "gamma" not in capsys.readouterr().err


def test_no_cell_starts_too_late(tmp_path, capsys):
  late = "accelerator", *FLAGS.split(), f"--output={tmp_path}", "--minutes=0"
  assert main(late) == 0
  assert "not measured" in capsys.readouterr().out
  assert not (tmp_path / "cells.jsonl").exists()


def test_pairs_that_differ_least_from_the_first_come_first():
  setups = command._setups(parsed("--gammas", "2", "1", "--batches", "1", "2"))
  found = [(setup.batch, setup.temperature, setup.gamma) for setup in setups]
  assert found[0] == (1, 0.0, 2)
  assert {*found[1:4]} == {(1, 0.0, 1), (1, 1.0, 2), (2, 0.0, 2)}
  assert len({*found}) == 8


def test_command_buffers_are_a_gpu_s_alone(monkeypatch):
  args = parsed()
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
