r"""Measures speculation on this GPU or TPU, with random weights, in minutes.

  make gpu ARGS="--output DIR"                  # 7 minutes
  make gpu ARGS="--output DIR --resume OTHER"   # continues from the cells in OTHER

Needs JAX, Flax, jaxtyping, and NumPy; no checkpoint, no data, no seqio, TensorFlow or
T5X. Runs the checks of `make test-gpu`, then measures pairs of T5 1.1's sizes at the
paper's acceptance rates (`bench.oracle`), the most informative pairs first. Each cell
is kept in DIR/cells.jsonl as soon as it is measured, and no cell starts that would
probably end after --minutes.

The programs of a pair compile in parallel. Plain and speculative programs then run in
turn, and the clock starts at their fourth run. Times are slopes between few and many
repetitions in one compiled loop. A draft step is measured inside the loop: the time of
an iteration that drafts twice, less an iteration's, over gamma.
"""

import argparse
import dataclasses
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.gpu import checks
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.oracle import ROUNDED, Compiled, Pair, Setup, compiled
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.table import Table, plain, render
from specdec_t5x.bench.timed import alternate, repeated, slopes
from specdec_t5x.environment import environment, machine
from specdec_t5x.native.cuda import library
from specdec_t5x.network.config import DTYPES, WEIGHTS
from specdec_t5x.network.sizes import SIZES

# A GPU records command buffers in a program's second run.
_WARM = 3
_CHECK_SECONDS = 150
_CHECKED = "small"  # The size of the network that the checks decode with.
_PARTS = "plain", "width", "iteration", "draft_step", "block", "rest", "c"
_OF_PAIR = "target", "draft", "batch", "gamma"
# Acceptance rates that the target's rounded weights may reach, not from the paper.
_ALPHAS = {"int8": [0.99], "int4": [0.88], "int4/32": [0.95]}


def make(args: argparse.Namespace) -> Table:
  """Measures cells until the time is up, and returns the tables."""
  at_least(args, gamma=1, runs=1, input_length=1)
  if not args.minutes >= 0:
    raise ValueError(f"--minutes must be a number of at least 0, got {args.minutes}.")
  pairs = list(setups(args))
  cells = Cells(args.output)
  if args.resume:
    cells.take(args.resume)
  reason = library.problem()
  kernels = f"not there: {reason}" if reason else "there"
  print(f"Native kernels: {kernels}.", file=sys.stderr, flush=True)
  end = time.monotonic() + 60 * args.minutes
  slowest = 0.0
  fixed = {"runs": args.runs, **machine()}
  is_late = time.monotonic() >= end
  checked = cells.get(
    {"checks": _CHECKED, **fixed}, lambda: {"rows": _checked(_CHECKED, reason)}, is_late
  )
  keys = {
    setup: {"pair": dataclasses.asdict(setup), "alphas": alphas(setup), **fixed}
    for setup in pairs
  }
  programs: dict[Any, Compiled] = {}
  for setup, key in keys.items():
    begin = time.monotonic()
    if cells.find(key) is not None or begin + slowest >= end:
      continue
    cells.add(key, _measured(setup, args.runs, programs))
    slowest = max(slowest, time.monotonic() - begin)
    # The tables are written after each pair, as the process may be killed.
    table = _table(args, cells, keys, checked, kernels)
    for part in (table, *table.before):
      part.write(args.output)
  return _table(args, cells, keys, checked, kernels)


def alphas(setup: Setup) -> list[float]:
  """Returns the acceptance rates to prescribe: the paper's, or T5-base's."""
  if setup.draft in _ALPHAS:
    return _ALPHAS[setup.draft]
  rows = published.numbers()["tables_2_and_4"]
  name = f"T5-{setup.draft}"
  if name not in {row["draft"] for row in rows}:
    name = "T5-base"
  key = name, int(setup.temperature > 0)
  rates = {row["alpha"] for row in rows if (row["draft"], row["temperature"]) == key}
  return sorted(rates, reverse=True)


def setups(args: argparse.Namespace) -> Iterator[Setup]:
  """Yields the pairs, the most informative pairs first."""
  first, *batches = args.batches
  base = Setup(
    target=args.target,
    draft=args.drafts[0],
    batch=first,
    temperature=args.temperatures[0],
    gamma=args.gamma,
    dtype=args.dtype,
    input_length=args.input_length,
    max_length=args.output_length,
  )
  for temperature, draft in itertools.product(args.temperatures, args.drafts):
    yield dataclasses.replace(base, temperature=temperature, draft=draft)
  for batch, draft in itertools.product(batches, args.drafts):
    yield dataclasses.replace(base, batch=batch, draft=draft)
  for name in args.rounded:
    yield dataclasses.replace(base, draft=name)
    if name in WEIGHTS:
      yield dataclasses.replace(base, weights=name)


def _measured(setup: Setup, runs: int, programs: dict[Any, Compiled]) -> dict[str, Any]:
  """Returns a pair's result, or the device's error; adds new programs to `programs`."""
  weights = "" if setup.weights == "float32" else f" in {setup.weights}"
  at = f"batch {setup.batch}, T={setup.temperature:g}, gamma {setup.gamma}"
  words = f"{setup.target}{weights} with {setup.draft}, {at}"
  print(words, file=sys.stderr, flush=True)
  try:
    pair = Pair(setup)
    jax.block_until_ready(pair.given)
    keys = {name: _program_key(setup, name) for name in pair.functions}
    # Nothing else may run: XLA times products on the device during compilation.
    with futures.ThreadPoolExecutor() as pool:
      jobs = {}
      for name, (function, arguments) in pair.functions.items():
        if keys[name] not in programs:
          job = pool.submit(compiled, function, jnp.int32(1), *arguments)
          jobs[keys[name]] = job
      programs |= {key: job.result() for key, job in jobs.items()}
    pair.programs |= {name: programs[key] for name, key in keys.items()}
    return measured(pair, runs)
  except jax.errors.JaxRuntimeError as error:
    message = str(error).splitlines()[0][:200]
    print(f"  failed: {message}", file=sys.stderr, flush=True)
    return {"error": message}


def measured(pair: Pair, runs: int) -> dict[str, Any]:
  """Times a pair's programs in turn.

  Returns:
    Milliseconds of a "plain" token in the faster of two loops, an "iteration", a
    "draft_step", a "block" and the "rest" of an iteration; "width", the faster loop's
    tokens per call; "c"; seconds of each "compile"; "memory", the most bytes of this
    process on the device; and "calls", a row for each prescribed acceptance rate.
  """
  setup = pair.setup
  calls = {alpha: pair.calls(alpha, runs) for alpha in alphas(setup)}
  timed = alternate({**repeated(pair.loops()), **calls}, range(runs), _WARM)
  loops = {key: result for key, result in timed.items() if isinstance(key, tuple)}
  ms = {name: 1e3 * float(np.median(times)) for name, times in slopes(loops).items()}
  if lost := [name for name, median in ms.items() if median <= 0]:
    return {"error": f"the time of {lost} is lost in noise: raise --runs"}
  fastest = min(("plain", "block"), key=ms.get)
  # The time of a small draft may be lost in noise.
  draft = max(ms["redrafted"] - ms["iteration"], 0.0) / setup.gamma
  c = draft / ms[fastest]
  setting = Setting(setup.gamma, setup.temperature)
  rows = []
  for alpha in calls:
    cell = Measured.timed(setting, timed[alpha], timed[fastest, setup.max_length])
    measured_alpha = cell.alpha.value
    row = {
      "alpha": alpha,
      "came": measured_alpha,
      "tokens_per_call": cell.tokens_per_call.value,
      "speed": plain(cell.speedup),
      "theorem": float(theory.walltime_improvement(measured_alpha, setup.gamma, c)),
      "identical": f"{int(cell.columns['identical'].sum())}/{runs}",
    }
    rows.append(row)
  memory = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
  return {
    "plain": ms[fastest],
    "width": 1 if fastest == "plain" else setup.gamma + 1,
    "iteration": ms["iteration"],
    "draft_step": draft,
    "block": ms["block"],
    "rest": ms["iteration"] - setup.gamma * draft - ms["block"],
    "c": c,
    "compile": {name: program.seconds for name, program in pair.programs.items()},
    "memory": memory,
    "calls": rows,
  }


def _checked(size: str, reason: str | None) -> list[dict[str, str]]:
  """Returns the rows of the checks.

  A failing kernel may disable a process's device, so another process checks kernels.
  """
  if reason:
    return [vars(check) for check in checks.checks(size)]
  command = [sys.executable, "-m", checks.__name__, "--size", size]
  variables = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  try:
    process = subprocess.run(
      command, timeout=_CHECK_SECONDS, stdout=subprocess.PIPE, env=variables
    )
    output = process.stdout
    ending = f"the exit status is {process.returncode}"
  except subprocess.TimeoutExpired as error:
    output = error.stdout or b""
    ending = f"no answer in {_CHECK_SECONDS} s"
  lines = [line.split(": ", 2) for line in output.decode().splitlines()]
  # A killed process may leave half a line.
  results = [checks.Check(line[1], line[0], line[2]) for line in lines if len(line) > 2]
  return [vars(check) for check in (*results, checks.Check("all", "ended", ending))]


def _table(args, cells, keys, checked, kernels) -> Table:
  """Returns the tables of the measured cells; other cells are shown as not measured."""
  shown = [row for setup, key in keys.items() for row in _rows(setup, cells.find(key))]
  check_rows = checked["rows"] if checked else [{"check": "all"}]
  before = [render("gpu.checks", check_rows, command="make gpu")]
  words = {"device": environment()["device"], "kernels": kernels}
  hidden = "output", "resume", "keep"
  settings = {n: x for n, x in vars(args).items() if n not in hidden}
  return render(
    "gpu", shown, words, command="make gpu", settings=settings, before=before
  )


def _rows(setup: Setup, result: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
  base = {name: getattr(setup, name) for name in _OF_PAIR}
  base["temperature"] = f"{setup.temperature:g}"
  base["weights"] = setup.dtype if setup.weights == "float32" else setup.weights
  if result is None or "error" in result:
    yield {**base, **(result or {})}
    return
  base |= {name: result[name] for name in _PARTS}
  base |= {f"compile_{name}": value for name, value in result["compile"].items()}
  base["memory"] = result["memory"] and result["memory"] / 1e9
  for call in result["calls"]:
    yield {**base, **_paper(setup, call["alpha"]), **call}


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


def _program_key(setup: Setup, name: str) -> Any:
  """Returns a program's key; pairs share the keys of programs without a draft."""
  if name == "plain":
    return name, dataclasses.replace(setup, draft="", gamma=0)
  return name, dataclasses.replace(setup, draft="") if name == "block" else setup


COMMAND = Command(
  __doc__,
  make,
  {
    "target": ("xxl", "size of the target", SIZES),
    "drafts": (["small", "base", "large"], "sizes, the most informative first", SIZES),
    "rounded": (
      ["int8", "int4"],
      "drafts with the target's rounded weights",
      (*ROUNDED,),
    ),
    "batches": ([1, 4, 16], "batch sizes"),
    "temperatures": [0.0, 1.0],
    "gamma": 7,
    "input_length": (128, "number of tokens"),
    "output_length": (128, "number of tokens"),
    "dtype": ("bfloat16", "", DTYPES),
    "runs": (5, "number of runs of every program"),
    "minutes": (
      7.0,
      "time limit; a cell starts only if the cell will probably end in time",
    ),
    "resume": (str, "--output of an earlier run, to reuse measured cells"),
  },
)
