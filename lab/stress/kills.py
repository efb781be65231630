"""Kills `python -m t5x.infer` at random moments and compares the final results.

  python -m lab.stress.kills --output=DIR --kills=30 --seed=0 -- \
    --gin_file=configs/spec_ende.gin --gin_file=PAIR.gin \
    --gin.infer.checkpoint_period=1 --gin.BATCH_SIZE=16

Runs the job once undisturbed, into DIR/whole. Then starts the job in DIR/killed-0,
kills the process by SIGKILL, restarts the job, and after the last kill lets the job
finish. The seed draws the moments of the kills: after a delay, or microseconds after a
file of some kind appears in the output directory. So kills hit start-up, decoding,
writing and merging. If the job ends before the last kill, the remaining kills happen in
DIR/killed-1, and so on. Flags after `--` are t5x.infer's, without INFER_OUTPUT_DIR;
small chunks give many moments. Works with t5x_runtime and upstream T5X. Exits with 0 if
the results are equal byte for byte, and with 1 if results differ or a run fails.
"""

import argparse
import collections
import ctypes
import dataclasses
import json
import math
import os
import pathlib
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tests import processes
from tests.e2e import runs

SUMMARY = "speculation.json"
WINDOW = (1e-5, 5e-3)  # Range of seconds between the awaited file and the kill.
PHASES = ("start-up", "decoding", "writing", "merging", "cleaning up")


class Watch:
  """A watch on new and changed files in a folder and its subfolders (inotify).

  Args:
    folder: an existing folder.
  """

  CREATED = 0x100
  CHANGED = 0x2
  MOVED_HERE = 0x80
  IS_FOLDER = 0x40000000

  def __init__(self, folder: pathlib.Path):
    self._libc = ctypes.CDLL(None, use_errno=True)
    self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    self._folders = {}
    for path in (folder, *folder.glob("tmp-*")):
      self._add(path)

  def _add(self, folder: pathlib.Path) -> None:
    mask = self.CREATED | self.CHANGED | self.MOVED_HERE
    number = self._libc.inotify_add_watch(self._queue, os.fsencode(folder), mask)
    self._folders[number] = folder

  def names(self, timeout: float) -> list[str]:
    """Waits for new or changed files and returns their names.

    Args:
      timeout: seconds to wait at most; then returns [].
    """
    if not select.select([self._queue], [], [], timeout)[0]:
      return []
    data = os.read(self._queue, 1 << 16)
    names = []
    while data:
      number, mask, _, length = struct.unpack_from("iIII", data)
      name = os.fsdecode(data[16 : 16 + length].rstrip(b"\0"))
      data = data[16 + length :]
      if mask & self.IS_FOLDER:
        self._add(self._folders[number] / name)
      elif name:
        names.append(name)
    return names

  def close(self) -> None:
    """Ends the watch."""
    os.close(self._queue)


def is_marker(name: str) -> bool:
  """Returns whether a file is the marker of a complete chunk."""
  return is_chunk(name) and name.endswith(".COMPLETED") and not name.startswith(".")


def is_chunk(name: str) -> bool:
  """Returns whether a file is a complete or partial chunk or chunk marker."""
  return "-chunk" in name


def is_merging(name: str) -> bool:
  """Returns whether a file is the complete or partial merged result or summary."""
  if name.startswith(SUMMARY):
    return True
  others = (".COMPLETED", ".lock")
  return ".jsonl-" in name and not is_chunk(name) and not name.endswith(others)


def is_end(name: str) -> bool:
  """Returns whether a file is the task's complete or partial marker."""
  return name.endswith(".COMPLETED") and not is_chunk(name)


def phase_of(names: Sequence[str]) -> str:
  """Returns the phase of a killed run from the names of written files."""
  if any(map(is_end, names)):
    return "cleaning up"
  if any(map(is_merging, names)):
    return "merging"
  if "model-info.txt" not in names:
    return "start-up"
  chunks = list(filter(is_chunk, names))
  return "writing" if chunks and not is_marker(chunks[-1]) else "decoding"


@dataclasses.dataclass(frozen=True)
class Moment:
  """The moment of a kill: a delay after `count` files of a kind.

  Attributes:
    count: number of files; 0 is the start of the run.
    is_kind: returns whether a name is of the kind. The task's marker always counts.
    delay: seconds.
  """

  count: int
  is_kind: Callable[[str], bool]
  delay: float

  def has_come(self, names: Sequence[str]) -> bool:
    """Returns whether a run that has written `names` is due for the delay and kill."""
    kinds = (self.is_kind, is_end)
    return len({n for n in names if any(kind(n) for kind in kinds)}) >= self.count


@dataclasses.dataclass(frozen=True)
class Whole:
  """The undisturbed run.

  Attributes:
    output: the output directory.
    start_up: seconds until decoding began.
    chunk: seconds per chunk.
  """

  output: pathlib.Path
  start_up: float
  chunk: float


@dataclasses.dataclass
class Outcome:
  """The outcome of a killed job, compared with the undisturbed run.

  Attributes:
    kills: phases of the kills.
    error: last line of the log if a run failed without a kill.
    lines: lines of the result.
    missing: number of lines that only the undisturbed result has.
    extra: number of lines that the undisturbed result does not have.
    identical: whether the results are equal byte for byte.
    same_statistics: whether the statistics of the summaries are equal.
    left_over: files that an undisturbed run does not leave.
  """

  kills: list[str] = dataclasses.field(default_factory=list)
  error: str | None = None
  lines: int = 0
  missing: int = 0
  extra: int = 0
  identical: bool = False
  same_statistics: bool = False
  left_over: list[str] = dataclasses.field(default_factory=list)

  @property
  def good(self) -> bool:
    """Whether the kills left no trace."""
    return self.identical and self.same_statistics and not self.left_over


class Killer:
  """A starter and killer of jobs.

  Args:
    flags: flags of t5x.infer, without INFER_OUTPUT_DIR.
    folder: parent of the output directories and compiled programs.
    seed: seed of the moments.
  """

  def __init__(self, flags: Sequence[str], folder: pathlib.Path, seed: int):
    self._flags = list(flags)
    self._folder = folder
    self._random = random.Random(seed)
    self._environment = {
      # A private cache: a kill must not leave half a program for other tests.
      "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    self._whole: Whole | None = None

  @property
  def whole(self) -> Whole:
    """The undisturbed run, made on first use."""
    if self._whole is None:
      output = self._folder / "whole"
      began = time.monotonic()
      process = self._start(output)
      watch = Watch(output)
      start_up = 0.0
      names = []
      while process.poll() is None:
        names += watch.names(timeout=0.1)
        if not start_up and "model-info.txt" in names:
          start_up = time.monotonic() - began
      watch.close()
      if process.returncode != 0:
        raise RuntimeError(f"The undisturbed run failed: {_last_line(output)}")
      chunks = len(set(filter(is_marker, names)))
      decoding = time.monotonic() - began - start_up
      self._whole = Whole(output, start_up, decoding / chunks)
    return self._whole

  def run(self, name: str, phases: Sequence[str]) -> Outcome:
    """Kills a job in the given phases in order, lets the job end, and compares.

    Args:
      name: name of the output directory.
      phases: phases from PHASES to aim at. A kill may hit another phase. After the end
        of the job the remaining phases are unused.
    """
    whole = self.whole
    output = self._folder / name
    outcome = Outcome()
    for phase in [*phases, None]:
      process = self._start(output)
      watch = Watch(output)
      names = []
      if phase is not None:
        self._wait(process, watch, self._drawn(phase), names)
        if process.poll() is None:
          os.killpg(process.pid, signal.SIGKILL)
      code = process.wait()
      names += watch.names(timeout=0)
      watch.close()
      if code == -signal.SIGKILL:
        outcome.kills.append(phase_of(names))
      elif code != 0:
        outcome.error = _last_line(output)
        break
      else:
        break
    return _compared(outcome, output, whole.output)

  def _start(self, output: pathlib.Path) -> subprocess.Popen:
    output.mkdir(parents=True, exist_ok=True)
    with _log(output).open("w") as log:
      return subprocess.Popen(
        runs.command(flags=self._flags, INFER_OUTPUT_DIR=str(output)),
        cwd=runs.ROOT,
        env={**processes.environment(), **self._environment},
        stdout=log,
        stderr=log,
        start_new_session=True,
      )

  def _wait(self, process, watch: Watch, moment: Moment, names: list[str]) -> None:
    """Waits for the moment or the end of the job; appends written files to `names`."""
    while process.poll() is None and not moment.has_come(names):
      names += watch.names(timeout=0.1)
    time.sleep(moment.delay)

  def _drawn(self, phase: str) -> Moment:
    """Draws a moment that probably lies in `phase`."""
    draw = self._random
    undisturbed = self.whole
    if phase == "start-up":
      return Moment(0, is_end, draw.uniform(0, undisturbed.start_up))
    if phase == "decoding":

      def is_step(name):
        return is_marker(name) or name == "model-info.txt"

      return Moment(draw.randint(1, 3), is_step, draw.uniform(0, undisturbed.chunk))
    # A file has two names, a temporary and a final name. 8 names are two chunks with
    # markers, 4 names are the result and the summary, 2 names are the task's marker.
    kind, most = {
      "writing": (lambda name: is_chunk(name) or is_merging(name), 8),
      "merging": (is_merging, 4),
      "cleaning up": (is_end, 2),
    }[phase]
    delay = math.exp(draw.uniform(*map(math.log, WINDOW)))
    return Moment(draw.randint(1, most), kind, delay)


def _log(output: pathlib.Path) -> pathlib.Path:
  return output.with_name(f"{output.name}.log")


def _last_line(output: pathlib.Path) -> str:
  lines = _log(output).read_text().strip().splitlines()
  return lines[-1] if lines else "(no message)"


def _compared(outcome: Outcome, output, whole) -> Outcome:
  """Fills `outcome` with the differences between the folders `output` and `whole`."""

  def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}

  outcome.left_over = sorted(names(output) - names(whole))
  (expected,) = whole.glob("*.jsonl-?????-of-?????")
  path = output / expected.name
  content = path.read_bytes() if path.exists() else b""
  outcome.identical = content == expected.read_bytes()

  def count(text):
    return collections.Counter(text.splitlines(keepends=True))

  ours = count(content)
  theirs = count(expected.read_bytes())
  outcome.lines = ours.total()
  outcome.missing = (theirs - ours).total()
  outcome.extra = (ours - theirs).total()
  outcome.same_statistics = _statistics(output) == _statistics(whole)
  return outcome


def _statistics(output: pathlib.Path):
  path = output / SUMMARY
  return json.loads(path.read_text())["statistics"] if path.exists() else None


def aims(count: int, draw: random.Random) -> list[str]:
  """Draws phases to aim at; the last quarter is merging, then cleaning up."""
  late = count // 4
  early = draw.choices(PHASES[:3], weights=(1, 1, 2), k=count - late - 1)
  return [*early, *["merging"] * late, "cleaning up"]


def main() -> None:
  """Runs the command."""
  head, _, detail = __doc__.partition("\n\n")
  parser = argparse.ArgumentParser(
    prog="python -m lab.stress.kills",
    description=f"{head}\n\n{detail}",
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--output", type=pathlib.Path, required=True)
  parser.add_argument("--kills", type=int, default=30)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("flags", nargs="+", help="flags of t5x.infer")
  args = parser.parse_args()
  draw = random.Random(args.seed)
  killer = Killer(args.flags, args.output.absolute(), draw.randrange(2**32))
  outcomes = []
  left = args.kills
  while left > 0:
    outcome = killer.run(f"killed-{len(outcomes)}", aims(left, draw))
    print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    outcomes.append(outcome)
    left -= len(outcome.kills)
    if not outcome.kills:
      break
  hit = collections.Counter(phase for outcome in outcomes for phase in outcome.kills)
  good = sum(outcome.good for outcome in outcomes)
  print(f"{hit.total()} kills: " + ", ".join(f"{n} {p}" for p, n in hit.items()))
  print(f"{good} of {len(outcomes)} results equal the undisturbed result")
  sys.exit(good < len(outcomes))


if __name__ == "__main__":
  main()
