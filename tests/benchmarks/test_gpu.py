"""`make gpu` and `decode` at tiny sizes on a CPU."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import gpu
from benchmarks.environment import ROOT
from benchmarks.oracle import Pair, Setup
from benchmarks.timed import Timed
from specdec_t5x.core import theory
from specdec_t5x.native import platforms
from tests.benchmarks.conftest import ran

pytestmark = pytest.mark.slow

FLAGS = (
  "--target tiny --drafts tiny --batches 1 --temperatures 0 --gamma 2 "
  "--dtype float32 --input-length 8 --output-length 12 --runs 2 --rounded"
)
# Packages that fail on import in the command's process.
BARRED = "tensorflow seqio t5x gin optax orbax tqdm sentencepiece pytest safetensors"
# Seconds per repetition.
STEADY = {"plain": 5.0, "block": 4.0, "iteration": 8.0, "redrafted": 10.0}
CHECK = {"verdict": "passed", "check": "lines", "found": "0 of 2 lines differ"}


@pytest.fixture
def steady(monkeypatch):
  """Gives programs fixed times: noise hides the times of a tiny pair."""

  def alternate(programs, inputs, warm):
    assert warm == 3
    found = {}
    for key, program in programs.items():
      name, count = key if isinstance(key, tuple) else ("iteration", 4)
      results = tuple(program(value) for value in inputs)
      found[key] = Timed(np.full(len(inputs), 1.0 + STEADY[name] * count), results)
    return found

  monkeypatch.setattr(gpu, "alternate", alternate)


def run_instead_of_checks(monkeypatch, code, **changes):
  """Runs code in place of the command that checks kernels."""
  run = subprocess.run

  def other(words, **how):
    return run([words[0], "-c", code], **how | changes)

  monkeypatch.setattr(subprocess, "run", other)


@pytest.mark.usefixtures("steady")
def test_a_row_has_the_times_of_an_iteration_s_parts(tmp_path, monkeypatch, capsys):
  line = f"print({': '.join(CHECK.values())!r})"
  run_instead_of_checks(monkeypatch, line)
  found = ran("gpu", tmp_path, *FLAGS.split(), "int4")
  assert found["checks"][0] == CHECK
  assert "Native kernels: not there: the devices are cpus" in capsys.readouterr().err
  assert {row["draft"] for row in found["rows"]} == {"tiny", "int4"}
  for row in found["rows"]:
    # A plain token takes 4 s, because the block's loop is faster than the plain loop.
    # 10 - 8 s is the time of a draft of two tokens.
    parts = [row[n] for n in ("plain", "width", "draft_step", "block", "rest", "c")]
    assert parts == pytest.approx([4000, 3, 1000, 4000, 2000, 0.25])
    assert abs(row["came"] - row["alpha"]) < 0.2  # The positions are few.
    assert row["theorem"] == theory.walltime_improvement(row["came"], 2, row["c"])
    # Calls: 1 + 12 tokens of 4 s over 1 + 4 iterations of 8 s.
    assert row["speed"]["median"] == pytest.approx(49 / 33)
    assert (row["identical"], row["weights"]) == ("2/2", "float32")
    assert min(row["compile_iteration"], row["compile_redrafted"]) > 0


def test_the_most_informative_pairs_are_measured_first(tmp_path, monkeypatch):
  run_instead_of_checks(monkeypatch, "")
  flags = "--drafts small base large --batches 1 4 16 --rounded int8 int4 --minutes 0"
  rows = ran("gpu", tmp_path, *flags.split())["rows"]
  names = "draft", "batch", "temperature", "weights"
  found = [tuple(row[name] for name in names) for row in rows]
  assert found[:5] == [
    ("small", 1, "0", "bfloat16"),
    ("base", 1, "0", "bfloat16"),
    ("small", 1, "1", "bfloat16"),
    ("large", 1, "0", "bfloat16"),
    ("small", 4, "0", "bfloat16"),
  ]
  assert found.index(("small", 1, "0", "int8")) < found.index(
    ("int4", 1, "0", "bfloat16")
  )
  assert len(set(found)) == len(found) == 3 * 2 + 2 * 3 + 3


def test_bench_gpu_needs_only_jax_flax_and_numpy(tmp_path):
  for name in BARRED.split():
    (tmp_path / f"{name}.py").write_text(f"raise ImportError({name!r})\n")
  run = [sys.executable, "-m", "benchmarks", "gpu", *FLAGS.split(), "--minutes=0"]
  path = f"{tmp_path}{os.pathsep}{ROOT}"
  environment = {**os.environ, "PYTHONPATH": path}
  run.append(f"--output={tmp_path / 'out'}")
  done = subprocess.run(run, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr[-3000:]
  assert "not measured" in done.stdout
  assert not (tmp_path / "out" / "cells").exists()


@pytest.mark.usefixtures("steady")
def test_decode_measures_the_given_rates_once(tmp_path, monkeypatch):
  rows = ran("decode", tmp_path, *FLAGS.split(), "--alphas", "0", "1")["rows"]
  assert [(row["wanted"], row["alpha"]) for row in rows] == [(0, 0), (1, 1)]
  assert [row["tokens_per_call"] for row in rows] == [1, 3]
  # Tokens a call times a plain token of 4 s over an iteration of 8 s.
  assert [row["with_block"] for row in rows] == [0.5, 1.5]
  assert {row["identical"] for row in rows} == {"2/2"}
  monkeypatch.setattr(gpu, "alternate", None)
  assert ran("decode", tmp_path, *FLAGS.split(), "--alphas", "0", "1")["rows"] == rows


# An unfinished line is not a check.
HANGS = "print('passed: half', end='', flush=True); import time; time.sleep(60)"


@pytest.mark.parametrize(
  ("code", "seconds", "ending"),
  [
    ("raise SystemExit(3)", 60, "the exit status is 3"),
    (HANGS, 3, "no answer in 150 s"),
    ("import os; os.abort()", 60, "the exit status is -6"),
  ],
)
def test_kernels_are_checked_in_another_process(monkeypatch, code, seconds, ending):
  line = "print('passed: step: error 0.1: fine', flush=True)"
  run_instead_of_checks(monkeypatch, f"{line}; {code}", timeout=seconds)
  first, last = gpu._checked()["rows"]
  assert first == {"check": "step", "verdict": "passed", "found": "error 0.1: fine"}
  assert last == {"check": "all", "verdict": "ended", "found": ending}


# ---- The oracle: a prescribed acceptance rate. ----

LENGTH = 48


@pytest.mark.parametrize("wide_costs_more", [True, False])
@pytest.mark.parametrize(
  ("dtype", "target", "draft", "gamma", "batch", "temperature", "weights"),
  # The small target's argmax in bfloat16 depends on the shape of a call. At batch 1 a
  # GPU scores blocks of a fixed width.
  [
    ("float32", "tiny", "tiny", 2, 4, 0.0, "float32"),
    ("bfloat16", "small", "tiny", 5, 1, 0.0, "float32"),
    ("bfloat16", "tiny", "int4", 3, 4, 1.0, "float32"),
    ("bfloat16", "tiny", "tiny", 3, 1, 0.0, "int8"),
  ],
)
def test_every_program_decodes_the_text_and_alpha_is_as_prescribed(
  dtype, target, draft, gamma, batch, temperature, weights, wide_costs_more, monkeypatch
):
  monkeypatch.setattr(platforms, "wide_blocks_cost_more", lambda: wide_costs_more)
  setup = Setup(target, draft, batch, temperature, gamma, dtype, 8, LENGTH, weights)
  pair = Pair(setup)
  pair.compile({})
  text = pair.forced["target"]
  calls = {}
  for name, (_, arguments) in pair.functions.items():
    decoded = pair.programs[name](jnp.int32(LENGTH), *arguments)
    assert (decoded.tokens == text).all(), name
    calls[name] = decoded.statistics.target_calls
  # A second draft changes no count of calls.
  assert (calls["iteration"] == calls["redrafted"]).all()
  for alpha in (0.0, 0.3, 0.65, 0.9, 1.0):
    decoded = pair.calls(alpha, 2)(1)
    assert (decoded.tokens == text).all()
    counts = decoded.statistics
    accepted, tried = counts.accepted.sum(), counts.acceptance_positions.sum()
    is_right = pair.forced_at(alpha, 1)["draft"] == text
    np.testing.assert_allclose(is_right.mean(axis=1), alpha, atol=1 / LENGTH)
    assert abs(accepted / tried - alpha) < (0.15 if 0 < alpha < 1 else 1e-6)
