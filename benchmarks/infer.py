"""Times `python -m t5x.infer` with and without speculation, start-up included."""

import argparse
import itertools
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks.table import Table, render
from benchmarks.timed import alternate, median_ratio, spread


def make(name: str, args: argparse.Namespace) -> Table:
  """Runs both commands in turn at each batch and temperature."""
  settings = itertools.product(args.temperatures, args.batches)
  rows = [_row(args, temperature, batch) for temperature, batch in settings]
  return render(name, rows, {"task": args.task, "runs": args.runs})


def run(flags: Sequence[str], folder: str) -> tuple[list[dict[str, Any]], float]:
  """Runs `python -m t5x.infer` into a folder; FOLDER.log gets the command's output.

  Returns the parsed lines of the results, and the processors' seconds. Raises a
  ValueError with the end of the log if the command fails.
  """
  arguments = ["-m", "t5x.infer", *flags, f"--gin.INFER_OUTPUT_DIR={folder!r}"]
  log = pathlib.Path(f"{folder}.log")
  # The command would keep finished results, even after a new training of the pair.
  shutil.rmtree(folder, ignore_errors=True)
  begin = _processor_seconds()
  command = [sys.executable, *arguments]
  with log.open("w", encoding="utf-8") as file:
    process = subprocess.run(command, stdout=file, stderr=file, check=False)
  processor = _processor_seconds() - begin
  if process.returncode:
    end = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    raise ValueError(
      f"`python {' '.join(arguments)}` ended with code {process.returncode}. The end "
      f"of the log:\n{end}"
    )
  (path,) = pathlib.Path(folder).glob("*.jsonl-00000-of-00001")
  lines = path.read_text(encoding="utf-8").splitlines()
  return [json.loads(line) for line in lines], processor


def _row(args: argparse.Namespace, temperature: float, batch: int) -> dict[str, Any]:
  """Returns a row: seconds, the ratios of times, and counts of the outputs."""
  settings = [f"--gin.BATCH_SIZE={batch}", f"--gin.TEMPERATURE={temperature!r}"]
  with tempfile.TemporaryDirectory() as folder:
    programs = {}
    for name in ("baseline", "spec"):
      files = (f"configs/{name}_{args.task}.gin", *args.gin_file)
      flags = [f"--gin_file={file}" for file in files] + settings
      if name == "spec":
        flags += [f"--gin.{binding}" for binding in args.gin]
      programs[name] = lambda _, x=flags, path=f"{folder}/{name}": run(x, path)
    timed = alternate(programs, range(args.runs))
  plain, ours = timed.values()
  processors = [[run[1] for run in each.results] for each in (plain, ours)]
  pairs = list(zip(plain.results[-1][0], ours.results[-1][0], strict=True))
  same = sum(x["prediction_tokens"] == y["prediction_tokens"] for x, y in pairs)
  counts = [record["aux"] for _, record in pairs]
  calls = sum(count["target_calls"] for count in counts)
  return {
    "temperature": temperature,
    "batch": batch,
    "baseline_seconds": spread(plain.seconds),
    "spec_seconds": spread(ours.seconds),
    "speed": median_ratio(plain.seconds, ours.seconds),
    "processor": median_ratio(*processors),
    "tokens_per_call": sum(count["tokens"] for count in counts) / calls,
    "equal": "sampled" if temperature else f"{same} of {len(pairs)}",
  }


def _processor_seconds() -> float:
  usage = resource.getrusage(resource.RUSAGE_CHILDREN)
  return usage.ru_utime + usage.ru_stime
