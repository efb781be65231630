r"""The user's own command, with speculation and without, start-up included.

  python -m specdec_t5x.bench infer --output DIR                  # the demo pair
  python -m specdec_t5x.bench infer --gin-file my_pair.gin --batches 1 16 --output DIR
  python -m specdec_t5x.bench infer --gin GAMMA=5 VERIFICATION="'block'" --output DIR

Runs `python -m t5x.infer` of configs/baseline_*.gin and of configs/spec_*.gin in turn,
each once before it is timed: a first run compiles, and measures what drafting costs.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_t5x.bench.command import Command, at_least
from specdec_t5x.bench.table import Table, render
from specdec_t5x.bench.timed import alternate, median_ratio, spread

BOTH = ("baseline", "spec")


@dataclasses.dataclass(frozen=True)
class Finished:
  """A finished run of the command.

  Attributes:
    command: as it was started.
    file: its JSONL.
    records: the lines of that.
    seconds: that it took.
    processor: seconds of all cores.
  """

  command: str
  file: str
  records: Sequence[Mapping[str, Any]]
  seconds: float
  processor: float


def run(flags: Sequence[str], folder: str) -> Finished:
  """Runs `python -m t5x.infer` into a folder; FOLDER.log gets what it prints.

  Raises:
    ValueError: with the command and the end of its log, where it fails.
  """
  arguments = ["-m", "t5x.infer", *flags, f"--gin.INFER_OUTPUT_DIR={folder!r}"]
  command, log = " ".join(["python", *arguments]), pathlib.Path(f"{folder}.log")
  log.parent.mkdir(parents=True, exist_ok=True)
  # The command would keep finished results, even of a pair that was trained anew.
  shutil.rmtree(folder, ignore_errors=True)
  begin, before = time.perf_counter(), _processor_seconds()
  with log.open("w", encoding="utf-8") as file:
    started = [sys.executable, *arguments]
    ran = subprocess.run(started, stdout=file, stderr=file, check=False)
  seconds, used = time.perf_counter() - begin, _processor_seconds() - before
  if ran.returncode:
    end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise ValueError(
      f"`{command}` ended with code {ran.returncode}. The end of {log}:\n{end}"
    )
  (path,) = pathlib.Path(folder).glob("*.jsonl-00000-of-00001")
  lines = path.read_text(encoding="utf-8").splitlines()
  return Finished(command, str(path), [*map(json.loads, lines)], seconds, used)


def identical(one: Finished, other: Finished) -> str:
  """Returns how many outputs of two runs are the same, token for token."""
  pairs = zip(one.records, other.records, strict=True)
  same = sum(x["prediction_tokens"] == y["prediction_tokens"] for x, y in pairs)
  return f"{same} of {len(one.records)}"


def make(args: argparse.Namespace) -> Table:
  """Runs both commands in turn at each batch and temperature."""
  at_least(args, runs=1)
  settings = itertools.product(args.temperatures, args.batches)
  rows = [_row(args, temperature, batch) for temperature, batch in settings]
  return render("infer", rows, {"task": args.task, "runs": args.runs})


def _row(args: argparse.Namespace, temperature: float, batch: int) -> dict[str, Any]:
  """Returns a row: seconds, their ratio, and what was decoded."""
  settings = [f"--gin.BATCH_SIZE={batch}", f"--gin.TEMPERATURE={temperature!r}"]
  with tempfile.TemporaryDirectory() as folder:
    programs = {}
    for name in BOTH:
      files = (f"configs/{name}_{args.task}.gin", *args.gin_file)
      flags = [f"--gin_file={file}" for file in files]
      if name == "spec":
        flags += [f"--gin.{binding}" for binding in args.gin]
      programs[name] = functools.partial(_run, [*flags, *settings], f"{folder}/{name}")
    timed = alternate(programs, range(args.runs))
  plain, ours = (timed[name].results for name in BOTH)
  wall = [[each.seconds for each in runs] for runs in (plain, ours)]
  processor = [[each.processor for each in runs] for runs in (plain, ours)]
  counts = [record["aux"] for record in ours[-1].records]
  return {
    "temperature": temperature,
    "batch": batch,
    "baseline_seconds": spread(wall[0]),
    "spec_seconds": spread(wall[1]),
    "speed": median_ratio(*wall),
    "processor": median_ratio(*processor),
    "tokens_per_call": sum(each["tokens"] for each in counts)
    / sum(each["target_calls"] for each in counts),
    "equal": "sampled" if temperature else identical(plain[-1], ours[-1]),
  }


def _run(flags, folder, _) -> Finished:
  return run(flags, folder)


def _processor_seconds() -> float:
  used = resource.getrusage(resource.RUSAGE_CHILDREN)
  return used.ru_utime + used.ru_stime


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
