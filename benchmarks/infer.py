r"""Times `python -m t5x.infer` with and without speculation, start-up included.

  python -m benchmarks infer --output DIR                  # the demo pair
  python -m benchmarks infer --gin-file my_pair.gin --batches 1 16 --output DIR
  python -m benchmarks infer --gin GAMMA=5 VERIFICATION="'block'" --output DIR

Runs configs/baseline_*.gin and configs/spec_*.gin in turn. A first run of each is not
timed, as the first run compiles programs and measures the cost of drafting.
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
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.command import Command, at_least
from benchmarks.table import Table, render
from benchmarks.timed import alternate, median_ratio, spread

BOTH = ("baseline", "spec")


@dataclasses.dataclass(frozen=True)
class Finished:
  """A finished run of the command.

  Attributes:
    command: the command line.
    file: the path of the JSONL file.
    records: the parsed lines of the file.
    processor: the processor time of all cores, in seconds.
  """

  command: str
  file: str
  records: Sequence[Mapping[str, Any]]
  processor: float


def run(flags: Sequence[str], folder: str) -> Finished:
  """Runs `python -m t5x.infer` into a folder; FOLDER.log gets the command's output.

  Raises:
    ValueError: if the command fails, with the command line and the end of the log.
  """
  arguments = ["-m", "t5x.infer", *flags, f"--gin.INFER_OUTPUT_DIR={folder!r}"]
  command = " ".join(["python", *arguments])
  log = pathlib.Path(f"{folder}.log")
  log.parent.mkdir(parents=True, exist_ok=True)
  # The command would keep finished results, even after a new training of the pair.
  shutil.rmtree(folder, ignore_errors=True)
  begin = _processor_seconds()
  with log.open("w", encoding="utf-8") as file:
    process = subprocess.run(
      [sys.executable, *arguments], stdout=file, stderr=file, check=False
    )
  processor = _processor_seconds() - begin
  if process.returncode:
    end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise ValueError(
      f"`{command}` ended with code {process.returncode}. The end of {log}:\n{end}"
    )
  (path,) = pathlib.Path(folder).glob("*.jsonl-00000-of-00001")
  lines = path.read_text(encoding="utf-8").splitlines()
  return Finished(command, str(path), [*map(json.loads, lines)], processor)


def identical(one: Finished, other: Finished) -> str:
  """Returns the number of equal outputs of two runs, token for token."""
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
  """Returns a row: seconds, the ratios of times, and counts of the outputs."""
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
  plain, ours = (timed[name] for name in BOTH)
  plain_processor = [run.processor for run in plain.results]
  our_processor = [run.processor for run in ours.results]
  same = identical(plain.results[-1], ours.results[-1])
  counts = [record["aux"] for record in ours.results[-1].records]
  num_tokens = sum(count["tokens"] for count in counts)
  return {
    "temperature": temperature,
    "batch": batch,
    "baseline_seconds": spread(plain.seconds),
    "spec_seconds": spread(ours.seconds),
    "speed": median_ratio(plain.seconds, ours.seconds),
    "processor": median_ratio(plain_processor, our_processor),
    "tokens_per_call": num_tokens / sum(count["target_calls"] for count in counts),
    "equal": "sampled" if temperature else same,
  }


def _run(flags, folder, _) -> Finished:
  return run(flags, folder)


def _processor_seconds() -> float:
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  return usage.ru_utime + usage.ru_stime


COMMAND = Command(
  __doc__,
  make,
  {
    "task": ("ende", "TASK of configs/spec_TASK.gin", ("ende", "cnndm", "lm")),
    "gin_file": ([str], "more gin files for the two commands", {"default": []}),
    "gin": ([str], "NAME=VALUE, bindings of the speculative command", {"default": []}),
    "batches": [1, 4, 16, 64],
    "temperatures": [0.0, 1.0],
    "runs": (3, "number of timed runs of a command, after a warm-up run"),
  },
)
