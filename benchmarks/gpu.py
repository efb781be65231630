"""Measures pairs of random networks: the commands `gpu` and `decode`."""

import argparse
import dataclasses
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from benchmarks.cells import Cells
from benchmarks.environment import ROOT, environment, machine
from benchmarks.measure import Measured, Setting
from benchmarks.oracle import Pair, Setup
from benchmarks.paper import published
from benchmarks.table import Table, render
from benchmarks.timed import Costs, alternate, repeated, slopes
from specdec_t5x.core import theory
from specdec_t5x.native.cuda import library
from specdec_t5x.network.config import WEIGHTS

_WARM = 3  # A GPU records command buffers in a program's second run.
_CHECK_SECONDS = 150
# Acceptance rates that the target's rounded weights may reach, not from the paper.
_ALPHAS = {"int8": [0.99], "int4": [0.88], "int4/32": [0.95]}


def make(name: str, args: argparse.Namespace) -> Table:
  """Measures cells until the time is up, and returns the tables of a command."""
  if not all(0 <= alpha <= 1 for alpha in args.alphas):
    raise ValueError(f"--alphas must be numbers from 0 to 1, got {args.alphas}.")
  fixed = {"runs": args.runs, **machine()}
  keys = {
    setup: {"pair": dataclasses.asdict(setup), "alphas": _alphas(setup, args), **fixed}
    for setup in _setups(args)
  }
  cells = Cells(args.output)
  reason = library.problem()
  kernels = f"not there: {reason}" if reason else "there"
  print(f"Native kernels: {kernels}.", file=sys.stderr, flush=True)
  end = time.monotonic() + 60 * args.minutes
  checked = None
  if name == "gpu":
    key = {"checks": True, **fixed}
    is_late = time.monotonic() >= end
    checked = cells.find(key) if is_late else cells.get(key, _checked)

  def table():
    rows = [row for setup in keys for row in _rows(setup, cells.find(keys[setup]))]
    before = []
    if name == "decode":
      rows = [{**row, "alpha": row.get("came")} for row in rows]
    else:
      checks = checked["rows"] if checked else [{"check": "all"}]
      before = [render("gpu.checks", checks)]
    words = {"device": environment()["device"], "kernels": kernels}
    return render(name, rows, words, before=before)

  programs = {}
  slowest = 0.0
  for setup, key in keys.items():
    begin = time.monotonic()
    if cells.find(key) is None and begin + slowest < end:
      cells.add(key, _measured(setup, key["alphas"], args.runs, programs))
      slowest = max(slowest, time.monotonic() - begin)
      # The tables are written after each pair, as the process may be killed.
      for part in (table(), *table().before):
        part.write(args.output)
  return table()


def _alphas(setup: Setup, args: argparse.Namespace) -> list[float]:
  """Returns the acceptance rates to prescribe: given, the paper's, or T5-base's."""
  if args.alphas or setup.draft in _ALPHAS:
    return args.alphas or _ALPHAS[setup.draft]
  rates = {}
  for row in published.numbers()["tables_2_and_4"]:
    if row["temperature"] == int(setup.temperature > 0):
      rates.setdefault(row["draft"], set()).add(row["alpha"])
  return sorted(rates.get(f"T5-{setup.draft}", rates["T5-base"]), reverse=True)


def _setups(args: argparse.Namespace) -> Iterator[Setup]:
  """Yields the pairs, the most informative pairs first."""
  first, *batches = args.batches
  base = Setup(
    target=args.target,
    draft=(*args.drafts, *args.rounded)[0],
    batch=first,
    temperature=args.temperatures[0],
    gamma=args.gamma,
    dtype=args.dtype,
    input_length=args.input_length,
    max_length=args.output_length,
  )
  cold, *others = args.temperatures

  def pairs(temperatures, batches, drafts):
    for temperature, batch, draft in itertools.product(temperatures, batches, drafts):
      yield dataclasses.replace(base, temperature=temperature, batch=batch, draft=draft)

  yield from pairs([cold], [first], args.drafts[:2])
  yield from pairs(others, [first], args.drafts[:1])
  yield from pairs([cold], [first], args.drafts[2:])
  yield from pairs([cold], batches, args.drafts[:1])
  for name in args.rounded:
    if name in WEIGHTS and args.drafts:
      yield dataclasses.replace(base, weights=name)
  # 8 bits gained nothing on a GPU.
  yield from pairs([cold], [first], reversed(args.rounded))
  yield from pairs(others, [first], args.drafts[1:])
  yield from pairs([cold], batches, args.drafts[1:])


def _measured(setup: Setup, alphas, runs: int, programs: dict) -> dict[str, Any]:
  """Returns a pair's result, or the device's error; adds new programs to `programs`."""
  print(setup, file=sys.stderr, flush=True)
  try:
    pair = Pair(setup)
    jax.block_until_ready(pair.given)
    pair.compile(programs)
    return measured(pair, alphas, runs)
  except jax.errors.JaxRuntimeError as error:
    message = str(error).splitlines()[0][:200]
    print(f"  failed: {message}", file=sys.stderr, flush=True)
    return {"error": message}


def measured(pair: Pair, alphas: list[float], runs: int) -> dict[str, Any]:
  """Times a pair's programs in turn; returns times in milliseconds."""
  setup = pair.setup
  calls = {alpha: pair.calls(alpha, runs) for alpha in alphas}
  timed = alternate({**repeated(pair.loops()), **calls}, range(runs), _WARM)
  loops = {key: result for key, result in timed.items() if isinstance(key, tuple)}
  ms = {name: 1e3 * float(np.median(times)) for name, times in slopes(loops).items()}
  if lost := [name for name, median in ms.items() if median <= 0]:
    return {"error": f"the time of {lost} is lost in noise: raise --runs"}
  fastest = min(("plain", "block"), key=ms.get)
  plain = timed[fastest, setup.max_length]
  # The time of a small draft may be lost in noise.
  draft = max(ms["redrafted"] - ms["iteration"], 0.0)
  costs = Costs(setup.gamma, ms[fastest], 0.0, ms["iteration"], 0.0, draft)
  setting = Setting(setup.gamma, setup.temperature)
  rows = []
  for alpha in calls:
    cell = Measured.timed(setting, timed[alpha], plain)
    came = cell.alpha.value
    row = {
      "alpha": alpha,
      "came": came,
      "tokens_per_call": cell.tokens_per_call.value,
      "speed": dataclasses.asdict(cell.speedup),
      "theorem": float(theory.walltime_improvement(came, setup.gamma, costs.c)),
      "with_block": float(costs.loop_improvement(came)),
      "identical": f"{int(cell.columns['identical'].sum())}/{runs * setup.batch}",
    }
    rows.append(row)
  memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
  return {
    "iteration": costs.iteration,
    "block": ms["block"],
    "plain": costs.plain,
    "width": 1 if fastest == "plain" else setup.gamma + 1,  # Tokens of a call.
    "draft_step": draft / setup.gamma,
    "rest": costs.block - ms["block"],
    "c": costs.c,
    "compile": pair.compile_seconds,
    "memory": memory and memory / 1e9,  # The most of this process so far.
    "calls": rows,  # A row for each prescribed acceptance rate.
  }


def _checked() -> dict[str, list[dict[str, str]]]:
  """Returns the rows of the checks.

  A failing kernel may disable a process's device, so another process checks kernels.
  """
  command = [sys.executable, "-m", "tests.native.device"]
  how = {"cwd": ROOT, "timeout": _CHECK_SECONDS, "stdout": subprocess.PIPE}
  how["env"] = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  try:
    process = subprocess.run(command, **how)
    output = process.stdout
    ending = f"the exit status is {process.returncode}"
  except subprocess.TimeoutExpired as error:
    output = error.stdout or b""
    ending = f"no answer in {_CHECK_SECONDS} s"
  lines = [line.split(": ", 2) for line in output.decode().splitlines()]
  # A killed process may leave half a line.
  rows = [line for line in lines if len(line) > 2] + [["ended", "all", ending]]
  names = "verdict", "check", "found"
  return {"rows": [dict(zip(names, row, strict=True)) for row in rows]}


def _rows(setup: Setup, result: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
  row = {name: getattr(setup, name) for name in ("target", "draft", "batch", "gamma")}
  row["temperature"] = f"{setup.temperature:g}"
  row["weights"] = setup.dtype if setup.weights == "float32" else setup.weights
  if result is None or "error" in result:
    yield {**row, **(result or {})}
    return
  row |= {n: x for n, x in result.items() if n not in ("compile", "calls")}
  row |= {f"compile_{name}": value for name, value in result["compile"].items()}
  for call in result["calls"]:
    yield {**row, **_paper(setup, call["alpha"]), **call, "wanted": call["alpha"]}


def _paper(setup: Setup, alpha: float) -> dict[str, Any]:
  """Returns the paper's numbers for the same models at this acceptance rate."""
  if (setup.target, setup.weights, setup.batch) != ("xxl", "float32", 1):
    return {}
  key = "T5-" + setup.draft, setup.temperature, alpha
  shown = {"paper": "measured", "paper_gamma": "gamma", "paper_c": "c"}
  for row in published.numbers()["tables_2_and_4"]:
    if (row["draft"], row["temperature"], row["alpha"]) == key:
      return {name: row[column] for name, column in shown.items()}
  return {}
