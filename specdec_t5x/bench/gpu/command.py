r"""Measures speculation on this GPU or TPU, with random weights, in minutes.

  make gpu ARGS="--output DIR"                  # 7 minutes
  make gpu ARGS="--output DIR --resume OTHER"   # continues from the cells in OTHER

Needs JAX, Flax, jaxtyping, and NumPy; no checkpoint, no data, no seqio, TensorFlow or
T5X. Runs the checks of `make test-gpu`, then measures pairs of T5 1.1's sizes at the
paper's acceptance rates (`bench.oracle`), the most informative pairs first. Each cell
is kept in DIR/cells.jsonl as soon as it is measured, and no cell starts that would
probably end after --minutes.

The programs of a group of pairs compile in parallel. Plain and speculative programs
then run in turn, and the clock starts at their fourth run. Times are slopes between few
and many repetitions in one compiled loop. A draft step is measured inside the loop: the
time of an iteration that drafts twice, less an iteration's, over gamma.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.analysis import theory
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.environment import environment, machine
from specdec_t5x.bench.gpu import checks
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.oracle import Compiled, Pair, Setup, compiled
from specdec_t5x.bench.paper import published
from specdec_t5x.bench.programs import ROUNDED
from specdec_t5x.bench.table import Table, plain
from specdec_t5x.bench.timed import alternate, repeated, slopes
from specdec_t5x.native.cuda import library
from specdec_t5x.network.config import DTYPES, WEIGHTS
from specdec_t5x.network.sizes import SIZES

# A GPU records its command buffers in a program's second run.
_WARM = 3
_GROUP = 2  # Pairs that compile together, after the first one.
_CHECK_SECONDS = 150
_PARTS = "plain", "width", "iteration", "draft_step", "block", "rest", "c"
_OF_PAIR = "target", "draft", "batch", "gamma"
# What the target's own rounded weights may reach; not numbers of the paper.
_ALPHAS = {"int8": [0.99], "int4": [0.88], "int4/32": [0.95]}


def make(args: argparse.Namespace) -> Table:
  """Measures the cells that there is time for and returns the tables."""
  at_least(args, gamma=1, runs=1, input_length=1)
  if not args.minutes >= 0:
    raise ValueError(f"--minutes must be a number of at least 0, got {args.minutes}.")
  groups, cells = list(_groups(args)), Cells(args.output)
  if args.resume:
    cells.take(args.resume)
  reason = library.problem()
  kernels = f"not there: {reason}" if reason else "there"
  print(f"Native kernels: {kernels}.", file=sys.stderr, flush=True)
  end, slowest = time.monotonic() + 60 * args.minutes, 0.0
  fixed = {"runs": args.runs, **machine()}
  key = {"checks": args.check_size, **fixed}
  is_late = time.monotonic() >= end
  checked = cells.get(key, lambda: {"rows": _checked(args.check_size, reason)}, is_late)
  rows = [(setup, {**_key(setup), **fixed}) for group in groups for setup in group]
  programs: dict[Any, Compiled] = {}
  for group in groups:
    missing = [s for s in group if cells.find({**_key(s), **fixed}) is None]
    begin = time.monotonic()
    if not missing or begin + slowest >= end:
      continue
    for setup, result in _measured(missing, args.runs, programs):
      cells.add({**_key(setup), **fixed}, result)
    slowest = max(slowest, time.monotonic() - begin)
    # A later group may be killed.
    table = _table(args, cells, rows, checked, kernels)
    for each in (table, *table.before):
      each.write(args.output)
  return _table(args, cells, rows, checked, kernels)


def alphas(setup: Setup) -> list[float]:
  """Returns the acceptance rates to prescribe: the paper's, if it has this draft."""
  if setup.draft in _ALPHAS:
    return _ALPHAS[setup.draft]
  rows = published.numbers()["tables_2_and_4"]
  name = f"T5-{setup.draft}"
  if name not in {row["draft"] for row in rows}:
    name = "T5-base"
  at = name, int(setup.temperature > 0)
  found = {row["alpha"] for row in rows if (row["draft"], row["temperature"]) == at}
  return sorted(found, reverse=True)


def _groups(args) -> Iterator[list[Setup]]:
  """Yields pairs that compile together, the most informative first."""
  lengths = args.dtype, args.input_length, args.output_length

  def setup(draft, batch, temperature, weights="float32"):
    how = batch, temperature, args.gamma, *lengths
    return Setup(args.target, draft, *how, weights=weights)

  first, *batches = args.batches
  greedy = args.temperatures[0]
  wanted = [setup(d, first, t) for t in args.temperatures for d in args.drafts]
  wanted += [setup(d, batch, greedy) for batch in batches for d in args.drafts]
  for name in args.rounded:
    wanted.append(setup(name, first, greedy))
    if name in WEIGHTS:
      wanted.append(setup(args.drafts[0], first, greedy, weights=name))
  yield wanted[:1]
  for begin in range(1, len(wanted), _GROUP):
    yield wanted[begin : begin + _GROUP]


def _measured(
  setups: Sequence[Setup], runs: int, programs: dict[Any, Compiled]
) -> Iterator[tuple[Setup, dict[str, Any]]]:
  """Yields the result of each pair, or the device's error.

  Args:
    setups: compiled together.
    runs: of each program.
    programs: those compiled so far; the new ones are added.
  """
  pairs, jobs = {}, {}
  for setup in setups:
    print(_words(setup), file=sys.stderr, flush=True)
    try:
      pair = Pair(setup)
      jax.block_until_ready(pair.given)
      pairs[setup] = pair
    except jax.errors.JaxRuntimeError as error:
      yield setup, _failed(error)
  # While XLA compiles, it times its products on the device: nothing else may run there.
  with futures.ThreadPoolExecutor() as pool:
    for setup, pair in pairs.items():
      for name, (function, arguments) in pair.functions.items():
        key = _program_key(setup, name)
        if key not in programs and key not in jobs:
          jobs[key] = pool.submit(compiled, function, jnp.int32(1), *arguments)
  for setup, pair in pairs.items():
    try:
      for name in pair.functions:
        key = _program_key(setup, name)
        if key not in programs:
          programs[key] = jobs[key].result()
        pair.programs[name] = programs[key]
      yield setup, measured(pair, runs)
    except jax.errors.JaxRuntimeError as error:
      yield setup, _failed(error)


def measured(pair: Pair, runs: int) -> dict[str, Any]:
  """Returns the times of a pair's programs, which run in turn.

  Returns:
    Milliseconds of a "plain" token, the faster of both loops; of an "iteration", a
    "draft" step, and a "block"; the "rest" of an iteration; "c"; seconds of each
    "compile"; "memory", the most bytes that this process has held on the device; and
    under "calls" a row for each prescribed acceptance rate.
  """
  setup, calls = pair.setup, {a: pair.calls(a, runs) for a in alphas(pair.setup)}
  timed = alternate({**repeated(pair.loops()), **calls}, range(runs), _WARM)
  loops = {key: each for key, each in timed.items() if isinstance(key, tuple)}
  ms = {name: 1e3 * float(np.median(each)) for name, each in slopes(loops).items()}
  if lost := [name for name, each in ms.items() if each <= 0]:
    return {"error": f"the time of {lost} is lost in noise: raise --runs"}
  fastest = min(("plain", "block"), key=ms.get)
  # So small a draft may be lost in noise.
  draft = max(ms["redrafted"] - ms["iteration"], 0.0) / setup.gamma
  c = draft / ms[fastest]
  rows = []
  for alpha in calls:
    cell = Measured.timed(
      Setting(setup.gamma, setup.temperature),
      timed[alpha],
      timed[fastest, setup.max_length],
    )
    came = cell.alpha.value
    row = {
      "alpha": alpha,
      "came": came,
      "tokens_per_call": cell.tokens_per_call.value,
      "speed": plain(cell.speedup),
      "theorem": float(theory.walltime_improvement(came, setup.gamma, c)),
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
    "compile": {name: made.seconds for name, made in pair.programs.items()},
    "memory": memory,
    "calls": rows,
  }


def _checked(size: str, reason: str | None) -> list[dict[str, str]]:
  """Returns the rows of the checks.

  A kernel that fails may take its process's device with it, so kernels are checked in
  another process.
  """
  if reason:
    return [vars(check) for check in checks.checks(size)]
  command = [sys.executable, "-m", checks.__name__, "--size", size]
  words = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
  try:
    how = {"stdout": subprocess.PIPE, "env": words}
    ran = subprocess.run(command, timeout=_CHECK_SECONDS, **how)
    output, ending = ran.stdout, f"the exit status is {ran.returncode}"
  except subprocess.TimeoutExpired as error:
    output, ending = error.stdout or b"", f"no answer in {_CHECK_SECONDS} s"
  printed = [line.split(": ", 2) for line in output.decode().splitlines()]
  # A process that was killed may leave half a line.
  found = [checks.Check(line[1], line[0], line[2]) for line in printed if len(line) > 2]
  return [vars(check) for check in (*found, checks.Check("all", "ended", ending))]


def _table(args, cells, rows, checked, kernels) -> Table:
  """Returns the tables of the cells that there are; the others are not measured."""
  shown = [row for setup, key in rows for row in _rows(setup, cells.find(key))]
  found = checked["rows"] if checked else [{"check": "all"}]
  command = {"command": "make gpu"}
  before = [Table.of("gpu.checks", found, **command)]
  words = {"device": environment()["device"], "kernels": kernels}
  hidden = "output", "resume", "keep"
  settings = {n: x for n, x in vars(args).items() if n not in hidden}
  return Table.of("gpu", shown, words, settings=settings, before=before, **command)


def _rows(setup: Setup, result: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
  base = {name: getattr(setup, name) for name in _OF_PAIR}
  base["temperature"] = f"{setup.temperature:g}"
  base["weights"] = setup.dtype if setup.weights == "float32" else setup.weights
  if result is None or "error" in result:
    yield {**base, **(result or {})}
    return
  seconds, memory = result["compile"], result["memory"]
  pair = {name: result[name] for name in _PARTS}
  pair |= {f"compile_{name}": value for name, value in seconds.items()}
  pair["memory"] = memory and memory / 1e9
  for call in result["calls"]:
    yield {**base, **pair, **_paper(setup, call["alpha"]), **call}


def _paper(setup: Setup, alpha: float) -> dict[str, Any]:
  """Returns the paper's numbers for the same models at this acceptance rate."""
  of = "T5-" + setup.draft, setup.temperature, alpha
  if (setup.target, setup.weights, setup.batch) != ("xxl", "float32", 1):
    return {}
  for row in published.numbers()["tables_2_and_4"]:
    if (row["draft"], row["temperature"], row["alpha"]) == of:
      return {
        "paper": row["measured"],
        "paper_gamma": row["gamma"],
        "paper_c": row["c"],
      }
  return {}


def _key(setup: Setup) -> dict[str, Any]:
  return {"pair": dataclasses.asdict(setup), "alphas": alphas(setup)}


def _program_key(setup: Setup, name: str) -> Any:
  """Returns the same key for programs that pairs share: those of the target alone."""
  if name == "plain":
    return name, dataclasses.replace(setup, draft="", gamma=0)
  return name, dataclasses.replace(setup, draft="") if name == "block" else setup


def _failed(error: Exception) -> dict[str, str]:
  found = str(error).splitlines()[0][:200]
  print(f"  failed: {found}", file=sys.stderr, flush=True)
  return {"error": found}


def _words(setup: Setup) -> str:
  weights = "" if setup.weights == "float32" else f" in {setup.weights}"
  at = f"batch {setup.batch}, T={setup.temperature:g}, gamma {setup.gamma}"
  return f"{setup.target}{weights} with {setup.draft}, {at}"


COMMAND = Command(
  __doc__,
  make,
  {
    "target": ("xxl", "size", SIZES),
    "drafts": (["small", "base", "large"], "sizes, the most informative first", SIZES),
    "rounded": (["int8", "int4"], "the target's own weights, rounded", (*ROUNDED,)),
    "batches": ([1, 4, 16], "rows"),
    "temperatures": [0.0, 1.0],
    "gamma": 7,
    "input_length": (128, "tokens"),
    "output_length": (128, "tokens"),
    "dtype": ("bfloat16", "", DTYPES),
    "runs": (5, "of each program"),
    "check_size": ("small", "of the network that the checks decode with", SIZES),
    "minutes": (7.0, "no cell starts that would probably end later"),
    "resume": (str, "a folder whose cells are taken over"),
  },
)
