r"""The user's own command, with speculation and without, start-up included.

  python -m specdec_t5x.bench infer --output DIR                  # the demo pair
  python -m specdec_t5x.bench infer --gin-file my_pair.gin --batches 1 16 --output DIR
  python -m specdec_t5x.bench infer --gin TEMPERATURE=1.0 DRAFTER="'copy'" --output DIR

Runs `python -m t5x.infer` of configs/baseline_*.gin and of configs/spec_*.gin in turn,
each once before it is timed: a first run compiles, and measures what drafting costs.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.table import Table
from specdec_t5x.bench.timed import median_ratio, spread

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
  times = {name: np.array(found[name][1:]) for name in BOTH}
  wall, processor = (
    median_ratio(*(times[name][:, kind] for name in BOTH)) for kind in (0, 1)
  )
  plain, ours = (_outputs(args, name) for name in BOTH)
  calls = sum(record["aux"]["target_calls"] for record in ours)
  return {
    "temperature": settings["TEMPERATURE"],
    "batch": settings["BATCH_SIZE"],
    **{f"{name}_seconds": spread(times[name][:, 0]) for name in BOTH},
    "speed": wall,
    "processor": processor,
    "tokens_per_call": sum(record["aux"]["tokens"] for record in ours) / calls,
    "equal": _equal(plain, ours) if not settings["TEMPERATURE"] else "sampled",
  }


def _run(name: str, args, settings: Mapping[str, Any]) -> tuple[float, float]:
  """Runs one of both commands; returns its seconds, and those of its processors."""
  folder = _folder(args, name)
  if folder.exists():
    shutil.rmtree(folder)  # A finished run would be left alone.
  bindings = {**settings, "INFER_OUTPUT_DIR": str(folder)}
  command = [
    *(sys.executable, "-m", "t5x.infer", f"--gin_file=configs/{name}_{args.task}.gin"),
    *(f"--gin_file={path}" for path in args.gin_file or ()),
    *(f"--gin.{binding}" for binding in args.gin or ()),
    *(f"--gin.{key}={value!r}" for key, value in bindings.items()),
  ]
  begin, before = time.perf_counter(), _processor_seconds()
  ran = subprocess.run(command, capture_output=True, text=True, check=False)
  if ran.returncode:
    raise ValueError(f"{' '.join(command)} failed: {ran.stderr.strip()[-2000:]}")
  return time.perf_counter() - begin, _processor_seconds() - before


def _processor_seconds() -> float:
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


def _folder(args, name: str) -> pathlib.Path:
  return pathlib.Path(os.path.abspath(args.output)) / name


def _outputs(args, name: str) -> list[dict[str, Any]]:
  (path,) = _folder(args, name).glob("*.jsonl-00000-of-00001")
  return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _equal(plain, ours) -> str:
  same = sum(
    x["prediction"] == y["prediction"] for x, y in zip(plain, ours, strict=True)
  )
  return f"{same} of {len(ours)}"


COMMAND = Command(
  __doc__,
  make,
  {
    "task": ("ende", "of configs/spec_TASK.gin", ("ende", "cnndm", "lm")),
    "gin_file": ([str], "further gin files, of both"),
    "gin": ([str], "NAME=VALUE, bindings of both"),
    "batches": [1, 4, 16, 64],
    "temperatures": [0.0, 1.0],
    "runs": (3, "of each, after one"),
  },
)
