"""Kills `python -m t5x.infer` at random moments and compares the final results.

  python -m lab.stress.kills --output=DIR --kills=30 --seed=0 -- \
    --gin_file=configs/spec_ende.gin --gin_file=PAIR.gin \
    --gin.infer.checkpoint_period=1 --gin.BATCH_SIZE=16

Runs the job once undisturbed, into DIR/whole. Then starts the job in DIR/killed-0,
kills the process by SIGKILL, restarts the job, and after the last kill lets the job
finish. A kill comes a random delay after the job has reached a random phase. If the job
ends before the last kill, the remaining kills happen in DIR/killed-1, and so on. Flags
after `--` are t5x.infer's, without INFER_OUTPUT_DIR. Works with t5x_runtime and
upstream T5X. Exits with 0 if the results are equal byte for byte, otherwise with 1.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tests import processes
from tests.e2e import runs

SUMMARY = "speculation.json"
PHASES = ("start-up", "decoding", "writing", "merging", "cleaning up")
WINDOW = (1e-5, 5e-3)  # Seconds between the beginning of a short phase and the kill.


class Run:
  """A started job.

  Args:
    flags: flags of t5x.infer, without INFER_OUTPUT_DIR.
    output: the output directory; the log and the compiled programs lie beside it.
  """

  def __init__(self, flags: Sequence[str], output: pathlib.Path):
    output.mkdir(parents=True, exist_ok=True)
    self._output = output
    self._log = output.with_name(f"{output.name}.log")
    self._began = time.time()
    environment = {
      # A private cache: a kill must not leave half a program for other tests.
      "JAX_COMPILATION_CACHE_DIR": str(output.with_name("compiled")),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with self._log.open("w") as log:
      self._process = subprocess.Popen(
        runs.command(flags=flags, INFER_OUTPUT_DIR=str(output)),
        cwd=runs.ROOT,
        env={**processes.environment(), **environment},
        stdout=log,
        stderr=log,
        start_new_session=True,
      )

  def phase(self) -> str:
    """Returns the phase of the job from the files that the job has written."""
    written = []
    for folder, _, files in os.walk(self._output):
      for name in files:
        with contextlib.suppress(FileNotFoundError):  # Renamed or removed.
          written.append((os.stat(os.path.join(folder, name)).st_mtime, name))
    names = [name for seconds, name in sorted(written) if seconds >= self._began]
    chunks = [name for name in names if "-chunk" in name]
    results = [name for name in names if name not in chunks and ".jsonl-" in name]
    if any(name.endswith(".COMPLETED") for name in results):
      return "cleaning up"
    if any(not name.endswith(".lock") for name in results) or SUMMARY in names:
      return "merging"
    if "model-info.txt" not in names:  # Written when decoding begins.
      return "start-up"
    is_marked = not chunks or chunks[-1].endswith(".COMPLETED")
    return "decoding" if is_marked else "writing"

  def reach(self, phase: str) -> float:
    """Waits for a phase or the end; returns the seconds since the start."""
    while self._process.poll() is None and PHASES.index(self.phase()) < PHASES.index(
      phase
    ):
      time.sleep(1e-4)
    return time.time() - self._began

  def kill(self) -> bool:
    """Kills the job; returns False if the job had ended."""
    if self._process.poll() is None:
      os.killpg(self._process.pid, signal.SIGKILL)
    return self._process.wait() == -signal.SIGKILL

  def error(self) -> str | None:
    """Waits for the end; returns the last line of the log if the job failed."""
    if self._process.wait() == 0:
      return None
    return (self._log.read_text().strip().splitlines() or ["(no message)"])[-1]


def contents(folder: pathlib.Path) -> dict[str, bytes | dict | None]:
  """Returns the results' bytes and the statistics; None for other files."""
  found = {}
  for path in folder.rglob("*"):
    content = None
    if path.match("*.jsonl-?????-of-?????"):
      content = path.read_bytes()
    elif path.name == SUMMARY:
      content = json.loads(path.read_text())["statistics"]
    found[str(path.relative_to(folder))] = content
  return found


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
    prog="python -m lab.stress.kills",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--output", type=pathlib.Path, required=True)
  parser.add_argument("--kills", type=int, default=30)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("flags", nargs="+", help="flags of t5x.infer")
  args = parser.parse_args()
  folder = args.output.absolute()
  whole = folder / "whole"
  draw = random.Random(args.seed)
  run = Run(args.flags, whole)
  started = run.reach("decoding")
  merged = run.reach("merging")
  if error := run.error():
    sys.exit(f"The undisturbed run failed: {error}")
  expected = contents(whole)
  # The longest delays of kills in long phases.
  longest = {"start-up": started, "decoding": (merged - started) / 8}
  kills = collections.Counter()
  failed = jobs = 0
  while kills.total() < args.kills:
    output = folder / f"killed-{jobs}"
    left = args.kills - kills.total()
    # The last quarter aims at merging, then at cleaning up.
    early = draw.choices(PHASES[:3], weights=(1, 1, 2), k=left - left // 4 - 1)
    for phase in [*early, *["merging"] * (left // 4), "cleaning up"]:
      run = Run(args.flags, output)
      run.reach(phase)
      delay = math.exp(draw.uniform(*map(math.log, WINDOW)))
      if phase in longest:
        delay = draw.uniform(0, longest[phase])
      time.sleep(delay)
      if not run.kill():
        break
      kills[run.phase()] += 1
    else:
      run = Run(args.flags, output)
    error, found = run.error(), contents(output)
    changed = [x for x in expected | found if found.get(x, 0) != expected.get(x, 0)]
    print(f"{output.name}: {error or changed or 'equal'}", flush=True)
    failed += bool(error or changed)
    jobs += 1
  print(f"{kills.total()} kills: " + ", ".join(f"{n} {p}" for p, n in kills.items()))
  print(f"{jobs - failed} of {jobs} results equal the undisturbed result")
  sys.exit(failed > 0)


if __name__ == "__main__":
  main()
