"""`make gpu` and `make test-gpu` at tiny sizes on a CPU."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.gpu import checks, command
from benchmarks.sizes import t5_1_1
from benchmarks.timed import Timed
from specdec_t5x.analysis import theory
from specdec_t5x.native.cuda import few
from specdec_t5x.network.transformer import Transformer

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
FLAGS = (
  "--target tiny --drafts tiny --rounded int4 --batches 1 --temperatures 0 --gamma 2 "
  "--dtype float32 --input-length 8 --output-length 12 --runs 2"
)
# Packages that fail on import in the command's process.
BARRED = "tensorflow seqio t5x gin optax orbax tqdm sentencepiece pytest safetensors"
# Seconds per repetition.
STEADY = {"plain": 5.0, "block": 4.0, "iteration": 8.0, "redrafted": 10.0}
CHECK = checks.Check("lines", checks.PASSED, "0 of 2 lines differ")


def steady(programs, inputs, warm):
  """Stands in for `alternate`: noise hides the times of a tiny pair."""
  assert warm == 3
  found = {}
  for key, program in programs.items():
    name, count = key if isinstance(key, tuple) else ("iteration", 4)
    results = tuple(program(value) for value in inputs)
    found[key] = Timed(np.full(len(inputs), 1.0 + STEADY[name] * count), results)
  return found


def ran(folder, *flags):
  assert main(["gpu", *FLAGS.split(), f"--output={folder}", *flags]) == 0
  return json.loads((folder / "gpu.json").read_text())


def test_a_row_has_the_times_of_an_iteration_s_parts(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(checks, "checks", lambda size: iter([CHECK]))
  monkeypatch.setattr(command, "alternate", steady)
  found = ran(tmp_path)
  assert found["checks"] == [vars(CHECK)]
  assert "Native kernels: not there: the devices are cpus" in capsys.readouterr().err
  assert {row["draft"] for row in found["rows"]} == {"tiny", "int4"}
  for row in found["rows"]:
    # A plain token takes 4 s, because the block's loop is faster than the plain loop.
    # 10 - 8 s is the time of a draft of two tokens.
    parts = [row[n] for n in ("plain", "width", "draft_step", "block", "rest")]
    assert parts == pytest.approx([4000, 3, 1000, 4000, 2000])
    assert row["c"] == pytest.approx(0.25)
    assert abs(row["came"] - row["alpha"]) < 0.1  # The positions are few.
    assert row["theorem"] == theory.walltime_improvement(row["came"], 2, row["c"])
    # Calls: 1 + 12 tokens of 4 s over 1 + 4 iterations of 8 s.
    assert row["speed"]["median"] == pytest.approx(49 / 33)
    assert (row["identical"], row["weights"]) == ("2/2", "float32")
    assert min(row["compile_iteration"], row["compile_redrafted"]) > 0


def test_bench_gpu_needs_only_jax_flax_and_numpy(tmp_path):
  for name in BARRED.split():
    (tmp_path / f"{name}.py").write_text(f"raise ImportError({name!r})\n")
  run = [sys.executable, "-m", "benchmarks", "gpu", *FLAGS.split()]
  path = f"{tmp_path}{os.pathsep}{ROOT}"
  done = subprocess.run(
    [*run, "--minutes=0", f"--output={tmp_path / 'out'}"],
    env={**os.environ, "PYTHONPATH": path},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  assert "not measured" in done.stdout
  assert not (tmp_path / "out" / "cells.jsonl").exists()


# ---- Checks ----


@pytest.mark.parametrize("how", [("float32", None), ("bfloat16", True)], ids=str)
def test_greedy_lines_agree(how):
  passed, found = checks.agreement("tiny", *how)
  assert passed
  assert found.startswith("GAMMA=5 0 of 64 differ, ")
  assert "auto 0 of 64 differ, " in found
  # Some drafts are accepted and some drafts are rejected.
  assert 1.2 < float(found.split("differ, ")[1].split()[0]) < 5.8


def test_samples_have_the_targets_distribution():
  assert checks.sampled()[0]
  passed, found = checks.sampled("typical")  # A lossy rule.
  assert not passed
  assert found.startswith("p = ")


@pytest.mark.parametrize(
  ("verdict", "status"), [(checks.PASSED, 0), (checks.LEFT_OUT, 0), (checks.FAILED, 1)]
)
def test_a_failed_check_sets_the_exit_status(monkeypatch, capsys, verdict, status):
  found = [CHECK, checks.Check("kernels", verdict, "so: it is")]
  monkeypatch.setattr(checks, "checks", lambda size: iter(found))
  assert checks.main([]) == status
  lines = capsys.readouterr().out.splitlines()
  assert lines == [
    "passed: lines: 0 of 2 lines differ",
    f"{verdict}: kernels: so: it is",
  ]


@pytest.mark.parametrize(
  ("code", "seconds", "ending"),
  [
    ("raise SystemExit(3)", 60, "the exit status is 3"),
    # A kernel that hangs. An unfinished line is not a check.
    (
      "print('passed: half', end='', flush=True); import time; time.sleep(60)",
      3,
      "no answer in 3 s",
    ),
    ("import os; os.abort()", 60, "the exit status is -6"),
  ],
)
def test_kernels_are_checked_in_another_process(monkeypatch, code, seconds, ending):
  line = "print('passed: step: error 0.1: fine', flush=True)"
  run = subprocess.run

  def other(words, **how):
    return run([words[0], "-c", f"{line}; {code}"], **how)

  monkeypatch.setattr(subprocess, "run", other)
  monkeypatch.setattr(command, "_CHECK_SECONDS", seconds)
  first, last = command._checked("tiny", None)
  assert first == {"check": "step", "verdict": "passed", "found": "error 0.1: fine"}
  assert last == {"check": "all", "verdict": "ended", "found": ending}


class StepByXla:
  """Stands in for `DraftStep`: XLA's network with a planted fault."""

  fault = None

  def __init__(self, layout):
    config = t5_1_1("small", "bfloat16")
    layers = {"num_encoder_layers": 1, "num_decoder_layers": layout.layers}
    self.network = Transformer(checks.dataclasses.replace(config, **layers))

  def problem(self, rows):
    return None

  def prepared(self, params):
    return params

  def scratch(self, rows):
    return jnp.zeros(1, jnp.uint32)

  def __call__(self, params, tokens, cache, scratch, steps=1):
    logits = []
    chosen = []
    count = steps
    for i in range(count):
      apply = self.network.apply
      found, _, cache = apply(
        {"params": params}, cache, tokens[:, None], method="extend"
      )
      found = found[:, 0]
      if self.fault == "logits":
        found = found.at[:, ::2].mul(1.1)
      if self.fault == "second step" and i == 1:
        found += 0.5
      tokens = found.argmax(-1).astype(jnp.int32)
      logits.append(found)
      chosen.append(tokens + (self.fault == "argmax"))
    return jnp.stack(chosen), jnp.stack(logits), None, cache, scratch


@pytest.mark.parametrize("fault", [None, "logits", "argmax", "second step"])
def test_a_faulty_draft_step_fails(monkeypatch, fault):
  monkeypatch.setattr(checks, "DraftStep", StepByXla)
  monkeypatch.setattr(StepByXla, "fault", fault)
  passed, found = checks.draft_step("small")
  assert passed == (fault is None), found


@pytest.mark.parametrize("bits", [16, 8, 4])
@pytest.mark.parametrize("fault", [None, "scale", "row"])
def test_faulty_products_of_few_rows_fail(monkeypatch, bits, fault):
  def multiply(x, weights):
    codes = weights.codes
    if bits == 4:
      low, high = ((codes >> shift & 15).astype(jnp.int8) for shift in (0, 4))
      halves = jnp.stack([low, high], -1).reshape(len(codes), -1)
      codes = jnp.where(halves > 7, halves - 16, halves)
    # Rows are multiplied one by one, so a row's sum doesn't depend on the batch.
    wide = codes.astype(jnp.float32)
    sums = jax.lax.map(lambda row: row.astype(jnp.float32) @ wide, x)
    if weights.scales is not None and fault != "scale":
      sums *= weights.scales.astype(jnp.float32)
    if fault == "scale":
      sums *= 1.02
    if fault == "row" and len(x) > 1:
      sums *= 1.004
    return (sums.astype(jnp.bfloat16),)

  monkeypatch.setattr(few, "multiply", multiply)
  passed, found = checks.few_rows(256, 64, bits)
  assert passed == (fault is None), found
