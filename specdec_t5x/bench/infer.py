r"""The user's own command, with speculation and without, start-up included.

  python -m specdec_t5x.bench infer --output DIR                  # the demo pair
  python -m specdec_t5x.bench infer --gin-file my_pair.gin --batches 1 16 --output DIR
  python -m specdec_t5x.bench infer --gin GAMMA=5 VERIFICATION="'block'" --output DIR

Runs `python -m t5x.infer` of configs/baseline_*.gin and of configs/spec_*.gin in turn,
each once before it is timed: a first run compiles, and measures what drafting costs.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.table import Table
from specdec_t5x.bench.timed import median_ratio, spread

Record = Mapping[str, Any]  # A line of what a command wrote.
BOTH = ("baseline", "spec")


def make(args: argparse.Namespace) -> Table:
  """Runs both commands in turn at each batch and temperature."""
  at_least(args, runs=1)
  rows = []
  for temperature in args.temperatures:
    for batch in args.batches:
      settings = {"BATCH_SIZE": batch, "TEMPERATURE": temperature}
      rows.append(settings_row(args, settings))
  return Table.of("infer", rows, {"task": args.task, "runs": args.runs})


def settings_row(args: argparse.Namespace, settings: Mapping[str, Any]) -> dict:
  """Returns a row: seconds, their ratio, and what was decoded."""
  found = {name: [] for name in BOTH}
  for _ in range(args.runs + 1):
    for name in BOTH:
      found[name].append(_run(name, args, settings))
  wall, processor = (
    {name: [run[kind] for run in found[name][1:]] for name in BOTH} for kind in (0, 1)
  )
  plain, ours = (found[name][-1][2] for name in BOTH)
  total = lambda key: sum(record["aux"][key] for record in ours)
  return {
    "temperature": settings["TEMPERATURE"],
    "batch": settings["BATCH_SIZE"],
    **{f"{name}_seconds": spread(wall[name]) for name in BOTH},
    "speed": median_ratio(*wall.values()),
    "processor": median_ratio(*processor.values()),
    "tokens_per_call": total("tokens") / total("target_calls"),
    "equal": "sampled" if settings["TEMPERATURE"] else _equal(plain, ours),
  }


def _run(
  name: str, args: argparse.Namespace, settings: Mapping[str, Any]
) -> tuple[float, float, list[Record]]:
  """Runs one of both: its seconds, those of its processors, and what it wrote."""
  with tempfile.TemporaryDirectory() as folder:
    bindings = {**settings, "INFER_OUTPUT_DIR": folder}
    command = [
      *(sys.executable, "-m", "t5x.infer"),
      *(f"--gin_file={x}" for x in (f"configs/{name}_{args.task}.gin", *args.gin_file)),
      *(f"--gin.{binding}" for binding in (args.gin if name == "spec" else ())),
      *(f"--gin.{key}={value!r}" for key, value in bindings.items()),
    ]
    begin, before = time.perf_counter(), _processor_seconds()
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds, used = time.perf_counter() - begin, _processor_seconds() - before
    if ran.returncode:
      raise ValueError(f"{' '.join(command)} failed: {ran.stderr.strip()[-2000:]}")
    return seconds, used, _records(pathlib.Path(folder))


def _processor_seconds() -> float:
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _records(folder: pathlib.Path) -> list[Record]:
  (path,) = folder.glob("*.jsonl-00000-of-00001")
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _equal(plain: Sequence[Record], ours: Sequence[Record]) -> str:
  pairs = zip(plain, ours, strict=True)
  return f"{sum(x['prediction'] == y['prediction'] for x, y in pairs)} of {len(ours)}"


COMMAND = Command(
  __doc__,
  make,
  {
    "task": ("ende", "of configs/spec_TASK.gin", ("ende", "cnndm", "lm")),
    "gin_file": ([str], "further gin files, of both", {"default": []}),
    "gin": ([str], "NAME=VALUE, bindings of the speculative one", {"default": []}),
    "batches": [1, 4, 16, 64],
    "temperatures": [0.0, 1.0],
    "runs": (3, "of each, after one"),
  },
)
