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

from specdec_t5x.analysis import theory
from specdec_t5x.bench.__main__ import main
from specdec_t5x.bench.gpu import checks, command
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.sizes import t5_1_1
from specdec_t5x.bench.timed import Timed
from specdec_t5x.native.cuda import few, library
from specdec_t5x.network.transformer import Transformer

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
RESULT = {
  **dict.fromkeys(("plain", "iteration", "draft_step", "block", "rest", "c"), 1.0),
  **{"width": 1, "compile": {"plain": 2.0}, "memory": None},
  "calls": [{"alpha": 0.8, "came": 0.8, "speed": 1.0}],
}


def steady(programs, inputs, warm):
  """Stands in for `alternate`: noise hides the times of a tiny pair."""
  assert warm == 3
  found = {}
  for key, program in programs.items():
    name, count = key if isinstance(key, tuple) else ("iteration", 4)
    results = tuple(program(value) for value in inputs)
    found[key] = Timed(np.full(len(inputs), 1.0 + STEADY[name] * count), results)
  return found


@pytest.fixture(params=["made"])
def quick(request, monkeypatch):
  """Replaces checks and pairs by stubs; a pair with draft 'small' runs out of memory.

  The parameter is the stage that runs out of memory.
  """

  def notice(stage, setup):
    if setup.draft == "small" and stage == request.param:
      raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 GB\nand more")

  class Pair:
    def __init__(self, setup):
      notice("made", setup)
      self.setup = setup
      self.programs = {}
      self.given = ()
      self.functions = {"iteration": (setup, ())}

  def compiled(setup, *arguments):
    notice("compiled", setup)

  def measured(pair, runs):
    assert pair.programs.keys() == {"iteration"}
    notice("measured", pair.setup)
    return RESULT

  monkeypatch.setattr(checks, "checks", lambda size: iter([CHECK]))
  monkeypatch.setattr(command, "measured", measured)
  monkeypatch.setattr(command, "compiled", compiled)
  monkeypatch.setattr(command, "Pair", Pair)


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
  run = [sys.executable, "-m", "specdec_t5x.bench", "gpu", *FLAGS.split()]
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


@pytest.mark.parametrize("quick", ["made", "compiled", "measured"], indirect=True)
def test_a_failed_pair_is_recorded_and_the_run_continues(quick, tmp_path):
  found = ran(tmp_path, "--drafts", "base", "small", "tiny")
  errors = {row["draft"]: row.get("error") for row in found["rows"]}
  exhausted = "RESOURCE_EXHAUSTED: 9 GB"
  assert errors == {"base": None, "small": exhausted, "tiny": None, "int4": None}


def test_resume_reuses_cells_and_measures_missing_cells(quick, tmp_path, monkeypatch):
  first, second = tmp_path / "first", tmp_path / "second"
  ran(first, "--drafts", "base", "tiny")
  pairs = []
  monkeypatch.setattr(
    command, "measured", lambda pair, runs: pairs.append(pair) or RESULT
  )
  found = ran(second, "--drafts", "base", "tiny", "large", f"--resume={first}")
  assert len(pairs) == 1
  assert all(row["c"] == 1.0 for row in found["rows"])
  # A run in an existing folder also continues.
  ran(second, "--drafts", "base", "tiny", "large", "--minutes=0")
  assert len(pairs) == 1


def test_a_pair_that_would_end_too_late_is_not_started(quick, tmp_path, monkeypatch):
  clock = iter(range(0, 10_000, 60))
  monkeypatch.setattr(command.time, "monotonic", lambda: next(clock))
  # Every reading of the clock adds a minute: the third pair ends after 7 minutes.
  found = ran(tmp_path, "--drafts", "base", "tiny", "large", "--minutes=7.5")
  assert [row.get("c") for row in found["rows"]] == [1.0, 1.0, 1.0, None]


def test_the_most_informative_pairs_come_first():
  args = command.COMMAND.parser().parse_args(["--output=x"])
  pairs = list(command.setups(args))
  first = [(s.draft, s.batch, s.temperature) for s in pairs[:5]]
  greedy = [(draft, 1, 0.0) for draft in ("small", "base", "large")]
  assert first == [*greedy, ("small", 1, 1.0), ("base", 1, 1.0)]
  last = pairs[-3:]
  assert [(s.draft, s.weights) for s in last] == [
    ("int8", "float32"),
    ("small", "int8"),
    ("int4", "float32"),
  ]
  assert command.alphas(pairs[0]) == [0.75, 0.65]
  assert command._paper(pairs[0], 0.75) == {
    "paper": 3.4,
    "paper_gamma": 7,
    "paper_c": 0.02,
  }
  assert command._paper(last[1], 0.75) == {}


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


def test_an_error_of_the_device_is_a_failed_check():
  def trap():
    raise jax.errors.JaxRuntimeError("INTERNAL: trap\nmore")

  assert checks._tried("x", trap) == checks.Check("x", checks.FAILED, "INTERNAL: trap")


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


def test_absent_kernels_are_left_out_with_the_reason(monkeypatch):
  monkeypatch.setattr(checks, "agreement", lambda *how: (True, "alike"))
  monkeypatch.setattr(checks, "sampled", lambda: (True, "alike"))
  monkeypatch.setattr(library, "problem", lambda: "no nvcc")
  first, *_ = checks.checks("tiny")
  assert first == checks.Check("native kernels", checks.LEFT_OUT, "no nvcc")
  monkeypatch.setattr(library, "problem", lambda: None)
  monkeypatch.setattr(checks, "draft_step", lambda size: (True, size))
  monkeypatch.setattr(checks, "few_rows", lambda *shape: (shape[-1] != 4, "x"))
  found = list(checks.checks("tiny"))
  assert len(found) == 3 + 2 + 3 + 6
  assert sum(check.verdict == checks.FAILED for check in found) == 2


# ---- The numbers of docs/results/gpu.md ----


def kept_table(name):
  return json.loads((ROOT / "docs/results/data" / f"{name}.json").read_text())


@pytest.mark.parametrize(("name", "count"), [("h100", 7), ("h100_loop", 6)])
def test_theorem_rest_and_paper_columns_match_the_kept_measurements(name, count):
  rows = [row for row in kept_table(name)["rows"] if "c" in row]
  assert len(rows) == count
  paper = published.numbers()["tables_2_and_4"]
  for row in rows:
    parts = row["gamma"] * row["draft_step"] + row["block"]
    assert row["rest"] == pytest.approx(row["iteration"] - parts, abs=0.005)
    assert row["c"] == pytest.approx(row["draft_step"] / row["plain"], rel=0.02)
    if "alpha" in row:
      theorem = theory.walltime_improvement(row["alpha"], row["gamma"], row["c"])
      assert row["theorem"] == pytest.approx(theorem, abs=0.005)
    if "paper" in row:
      of = f"T5-{row['draft']}", row["paper_alpha"], row["paper_c"], row["paper"]
      names = "draft", "alpha", "c", "measured"
      assert of in [tuple(each[name] for name in names) for each in paper]


def test_each_kept_table_names_its_date_machine_and_commit():
  paths = sorted((ROOT / "docs/results/data").glob("h100*.json"))
  page = (ROOT / "docs/results/gpu.md").read_text()
  for path in paths:
    made = json.loads(path.read_text())["environment"]
    assert made["device"] == "NVIDIA H100 80GB HBM3"
    assert len(made["code"]) == 7
    assert f"{made['date']}, code {made['code']}" in page
    assert f"<!-- table {path.stem}" in page
  assert sum(len(path.read_text().splitlines()) for path in paths) <= 250
