"""Kills `python -m t5x.infer` at random moments and compares what is left in the end.

  python -m lab.stress.kills --output=DIR --kills=30 --seed=0 -- \
    --gin_file=configs/spec_ende.gin --gin_file=PAIR.gin \
    --gin.infer.checkpoint_period=1 --gin.BATCH_SIZE=16

Runs the job once undisturbed, into DIR/whole. Then into DIR/killed-0: starts it, kills
it by SIGKILL, starts it again, and after so many kills lets it end. Moments are drawn
from the seed: after a delay, or microseconds after a file of one kind appears in the
output directory, so that start-up, decoding, writing and merging are all hit. A job
that ends before its kills are used up goes on in DIR/killed-1, and so on. Flags after
`--` are t5x.infer's, but INFER_OUTPUT_DIR; small chunks give many moments. Works with
either provider of t5x. Exits with 0 where the results are equal byte for byte, with 1
where they are not or a run fails.
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
WINDOW = (1e-5, 5e-3)  # seconds; a kill comes so long after the file it waits for
PHASES = ("start-up", "decoding", "writing", "merging", "cleaning up")


class Watch:
  """Tells at once which files appear or change in a folder and those below (inotify).

  Args:
    folder: to watch; it exists.
  """

  CREATED, CHANGED, MOVED_HERE, IS_FOLDER = 0x100, 0x2, 0x80, 0x40000000

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
    """Returns names of files that are new or changed, once there are any.

    Args:
      timeout: seconds after which none are returned.
    """
    if not select.select([self._queue], [], [], timeout)[0]:
      return []
    data, names = os.read(self._queue, 1 << 16), []
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
  """Whether a file is a whole chunk's marker."""
  return is_chunk(name) and name.endswith(".COMPLETED") and not name.startswith(".")


def is_chunk(name: str) -> bool:
  """Whether a file is a chunk, its marker, or either before it is whole."""
  return "-chunk" in name


def is_merging(name: str) -> bool:
  """Whether a file is the merged one, the summary, or either before it is whole."""
  if name.startswith(SUMMARY):
    return True
  others = (".COMPLETED", ".lock")
  return ".jsonl-" in name and not is_chunk(name) and not name.endswith(others)


def is_end(name: str) -> bool:
  """Whether a file is the task's marker, or that before it is whole."""
  return name.endswith(".COMPLETED") and not is_chunk(name)


def phase_of(names: Sequence[str]) -> str:
  """Returns what a run did when it was killed, by the files it had written."""
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
  """When to kill: some time after so many files of a kind.

  Attributes:
    count: of files; 0 is the start of the run.
    is_kind: whether a name is of the kind. Whatever comes later is, too.
    delay: seconds.
  """

  count: int
  is_kind: Callable[[str], bool]
  delay: float

  def has_come(self, names: Sequence[str]) -> bool:
    """Whether the run that has written `names` is to be killed after the delay."""
    kinds = (self.is_kind, is_end)
    return len({n for n in names if any(kind(n) for kind in kinds)}) >= self.count


@dataclasses.dataclass(frozen=True)
class Whole:
  """The undisturbed run.

  Attributes:
    output: its directory.
    start_up: seconds until it began to decode.
    chunk: seconds a chunk.
  """

  output: pathlib.Path
  start_up: float
  chunk: float


@dataclasses.dataclass
class Outcome:
  """What became of one output directory.

  Attributes:
    kills: phases that were hit.
    error: a run's that failed by itself.
    lines: of the result.
    missing: lines of the undisturbed result that are not in this one.
    extra: lines of this one that are not in the undisturbed result, or too often.
    identical: whether the two are equal byte for byte.
    same_statistics: whether the summaries' statistics are equal.
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
    """Whether a kill left no trace."""
    return self.identical and self.same_statistics and not self.left_over


class Killer:
  """Starts a job and kills it.

  Args:
    flags: of t5x.infer, but INFER_OUTPUT_DIR.
    folder: for all output directories and compiled programs.
    seed: of the moments.
  """

  def __init__(self, flags: Sequence[str], folder: pathlib.Path, seed: int):
    self._flags, self._folder = list(flags), folder
    self._random = random.Random(seed)
    self._environment = {
      # Not of the suite's: a kill must not leave half a program for other tests.
      "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    self._whole: Whole | None = None

  @property
  def whole(self) -> Whole:
    """The undisturbed run, which is made when it is first asked for."""
    if self._whole is None:
      output, began = self._folder / "whole", time.monotonic()
      process, watch, start_up = self._start(output), Watch(output), 0.0
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
    """Kills a job in the given phases, in order, lets it end, and compares.

    Args:
      name: of its output directory.
      phases: to aim at, of PHASES; what is hit may be another. Those that are left when
        the job has ended are not used.
    """
    whole, output, outcome = self.whole, self._folder / name, Outcome()
    for phase in [*phases, None]:
      process = self._start(output)
      watch, names = Watch(output), []
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
    """Waits for a moment, or for the job's end; adds to `names` what is written."""
    while process.poll() is None and not moment.has_come(names):
      names += watch.names(timeout=0.1)
    time.sleep(moment.delay)

  def _drawn(self, phase: str) -> Moment:
    """Returns a moment that is likely to be in `phase`."""
    draw, whole = self._random, self.whole
    if phase == "start-up":
      return Moment(0, is_end, draw.uniform(0, whole.start_up))
    if phase == "decoding":

      def is_step(name):
        return is_marker(name) or name == "model-info.txt"

      return Moment(draw.randint(1, 3), is_step, draw.uniform(0, whole.chunk))
    # Two names a file, one while it is written: two chunks and their markers, or the
    # result and its summary, or the task's marker.
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
  """Fills in how the files of `output` differ from those of `whole`."""

  def names(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}

  outcome.left_over = sorted(names(output) - names(whole))
  (expected,) = whole.glob("*.jsonl-?????-of-?????")
  found = output / expected.name
  content = found.read_bytes() if found.exists() else b""
  outcome.identical = content == expected.read_bytes()

  def count(text):
    return collections.Counter(text.splitlines(keepends=True))

  ours, theirs = count(content), count(expected.read_bytes())
  outcome.lines = ours.total()
  outcome.missing, outcome.extra = (theirs - ours).total(), (ours - theirs).total()
  outcome.same_statistics = _statistics(output) == _statistics(whole)
  return outcome


def _statistics(output: pathlib.Path):
  path = output / SUMMARY
  return json.loads(path.read_text())["statistics"] if path.exists() else None


def aims(count: int, draw: random.Random) -> list[str]:
  """Returns phases to aim at: a quarter of them merging, which come last."""
  late = count // 4
  early = draw.choices(PHASES[:3], weights=(1, 1, 2), k=count - late - 1)
  return [*early, *["merging"] * late, "cleaning up"]


def main() -> None:
  """The command."""
  head, _, detail = __doc__.partition("\n\n")
  parser = argparse.ArgumentParser(
    prog="python -m lab.stress.kills",
    description=f"{head}\n\n{detail}",
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--output", type=pathlib.Path, required=True)
  parser.add_argument("--kills", type=int, default=30)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("flags", nargs="+", help="of t5x.infer")
  args = parser.parse_args()
  draw = random.Random(args.seed)
  killer = Killer(args.flags, args.output.absolute(), draw.randrange(2**32))
  outcomes, left = [], args.kills
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
  print(f"{good} of {len(outcomes)} results equal that of the undisturbed run")
  sys.exit(good < len(outcomes))


if __name__ == "__main__":
  main()
