"""The chunks of an inference run, from which a killed run resumes."""

import contextlib
import glob
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import gin
import jax
from etils import epath

from t5x.inference_safety import digest, files_named, only_job, whole_file, writing

# Settings that may differ in a rerun, because the directory may have been moved.
_FREE = ("INFER_OUTPUT_DIR", "infer.output_dir")


class ChunkFiles:
  """The files of a task's run; a chunk counts when the marker records the contents.

  Args:
    output_dir: directory for results.
    task: name of the task.
    suffix: `<mode>.<extension>-<shard>-of-<shards>`.
    settings: settings that must be the same in a rerun.
  """

  def __init__(
    self, output_dir: str, task: str, suffix: str, settings: Mapping[str, Any]
  ):
    self._fname = f"{task}-{suffix}"
    self.output_dir = epath.Path(output_dir)
    # Other modes of the task share this directory.
    shard = "-".join(suffix.rsplit("-", 3)[1:])
    self.directory = self.output_dir / f"tmp-{task}-{shard}"
    self.result = self.output_dir / self._fname
    self.marker = self.output_dir / f"{self._fname}.COMPLETED"
    self._settings = json.loads(json.dumps(settings))
    # The number of examples of each chunk that is done.
    self._done: dict[int, int] = {}

  def lock(self) -> contextlib.AbstractContextManager:
    """Locks the files against other jobs, in the first process only."""
    if jax.process_index() != 0:
      return contextlib.nullcontext()
    return only_job(self.directory / f".{self._fname}.lock", self._fname)

  def is_done(self, chunk: int) -> bool:
    """Returns whether `find_done` found the chunk complete, or `write` wrote it."""
    return chunk in self._done

  def first_open(self) -> int:
    """Returns the first chunk that is not done."""
    return next(i for i in range(len(self._done) + 1) if i not in self._done)

  def is_finished(self) -> bool:
    """Returns whether the task is done.

    Raises:
      ValueError: if the result differs from the marker, or has other settings.
    """
    if not self.marker.exists():
      return False
    recorded = _recorded(self.marker)
    if "sha256" in recorded:
      _check(self.result, self.marker, "to run again")
      # A run that was killed after writing the marker may have left chunks.
      if jax.process_index() == 0 and self.directory.exists():
        self.remove()
    if changes := self.has_settings() and self._changes(recorded["settings"]):
      raise ValueError(
        f"INFER_OUTPUT_DIR={self.output_dir} holds a finished run with other settings: "
        f"{changes}. Choose another directory, or remove {self.marker} and the marked "
        "file to run again."
      )
    return True

  def has_settings(self) -> bool:
    """Returns whether the finished task's marker records the settings."""
    return "settings" in _recorded(self.marker)

  def find_done(self) -> None:
    """Finds the chunks that are done.

    Raises:
      ValueError: if a chunk is damaged, or has other settings.
    """
    self._done = self._completed()

  def write(
    self, chunk: int, examples: int, write_fn: Callable[..., None], *args
  ) -> None:
    """Writes a chunk of so many examples atomically by `write_fn(path, *args)`.

    Raises:
      ValueError: if the file system refuses a write.
    """
    path = self.directory / f"{self._fname}-chunk{chunk:05}"
    with self._writing(f"chunk {chunk}"):
      self.directory.mkdir(parents=True, exist_ok=True)
      with whole_file(path, self._partial(path)) as partial:
        write_fn(str(partial), *args)
        written = digest(partial)
      self._mark(_marker(path), {**written, "examples": examples})
    self._done[chunk] = examples

  def kept(self, total: int | None) -> str:
    """Returns a sentence on the chunks that are done, and on how to go on.

    Args:
      total: number of examples of this run; None if unknown.
    """
    if not self._done:
      return "No results are kept. Run the same command to start again."
    count = sum(self._done.values())
    of_total = "" if total is None else f" of {total}"
    return (
      f"The results of {count}{of_total} examples are kept in {self.directory}. Run "
      "the same command to decode the remaining examples."
    )

  def finish(self, count: int, merge_fn: Callable[..., None] | None) -> None:
    """Merges the chunks, marks the task as done, and removes the chunks.

    Args:
      count: number of chunks.
      merge_fn: (output_dir, fname, directory) -> None; None keeps the chunks.

    Raises:
      ValueError: if a chunk is missing or damaged, the merged lines are not one per
        example, or the file system refuses a write.
    """
    examples = self._completed()
    chunks = set(examples)
    expected = set(range(count))
    if chunks != expected:
      raise ValueError(
        f"{self.directory}: expected chunks 0 to {count - 1}, but chunks "
        f"{sorted(expected - chunks)} are missing and chunks "
        f"{sorted(chunks - expected)} are surplus: files or the input changed during "
        "the run. If chunks are missing, run the command again; if chunks are surplus, "
        "delete the directory."
      )
    with self._writing("the merged result"):
      if merge_fn is None:
        self._mark(self.marker, {})
        return
      merge_fn(str(self.output_dir), self._fname, str(self.directory))
      self._check_lines(sum(examples.values()))
      self._mark(self.marker, digest(self.result) if self.result.exists() else {})
    # The removal comes after the marker, so that a run killed in between has results.
    self.remove()

  def _check_lines(self, examples: int) -> None:
    """Raises a ValueError if the merged JSON lines are not one per example."""
    if not (self.result.exists() and ".jsonl-" in self._fname):
      return
    with self.result.open("rb") as file:
      lines = sum(1 for _ in file)
    if lines != examples:
      raise ValueError(
        f"{self.result} has {lines} lines, expected {examples}, one per example. The "
        f"chunks are kept in {self.directory}. Check infer.write_fn and "
        "infer.merge_fn, or set infer.merge_chunked_results = False."
      )

  def remove(self) -> None:
    """Removes this run's chunks, but not the chunks of other modes.

    The directory still holds the lock. Releasing the lock removes the directory if the
    directory is empty.
    """
    for file in self.directory.iterdir():
      if file.name.startswith((f"{self._fname}-", f".partial-{self._fname}-")):
        file.unlink()

  def _completed(self) -> dict[int, int]:
    """Returns the complete chunks' numbers of examples; compares chunks and markers.

    Raises:
      ValueError: if a chunk differs from the marker, or has other settings.
    """
    done = {}
    pattern = f"{glob.escape(self._fname)}-chunk*.COMPLETED"
    for marker in files_named(self.directory, pattern):
      path = marker.with_name(marker.name.removesuffix(".COMPLETED"))
      recorded = _recorded(marker) if path.exists() else {}
      # Markers of upstream T5X are empty. A chunk with such a marker is decoded again,
      # to the same lines.
      if not recorded.keys() >= {"settings", "examples"}:
        continue
      _check(path, marker, "to decode the chunk again")
      if changes := self._changes(recorded["settings"]):
        raise ValueError(
          f"{self.directory} holds chunks of an unfinished run with other settings: "
          f"{changes}. Delete the directory to start over, or set the old values to "
          "resume."
        )
      done[int(path.name.rpartition("-chunk")[2])] = recorded["examples"]
    return done

  def _changes(self, before: Mapping[str, Any]) -> str:
    """Returns the changes since the settings `before`, in words; '' means no change."""
    now = self._settings
    names = [n for n in {**before, **now} if before.get(n) != now.get(n)]
    return "; ".join(f"{n} was {before.get(n)}, is {now.get(n)}" for n in names)

  def _writing(self, what: str) -> contextlib.AbstractContextManager:
    count = len(self._done)
    kept = f"The {count} earlier chunks are kept"
    if count == 0:
      kept = ""
    elif count == 1:
      kept = "The earlier chunk is kept"
    return writing(what, self.output_dir, kept)

  def _partial(self, path: epath.Path) -> epath.Path:
    suffix = path.name.removeprefix(f"{self._fname}-")
    return self.directory / f".partial-{self._fname}-{os.getpid()}-{suffix}"

  def _mark(self, marker: epath.Path, written: Mapping[str, Any]) -> None:
    with whole_file(marker, self._partial(marker)) as partial:
      partial.write_text(json.dumps({**written, "settings": self._settings}))


def configuration() -> dict[str, str]:
  """Returns gin's bindings by name, except for the output directory."""
  lines = gin.config_str(max_line_length=10**5).splitlines()  # One binding per line.
  pairs = (line.split(" = ", maxsplit=1) for line in lines if not line.startswith("#"))
  bindings = dict(pair for pair in pairs if len(pair) == 2)
  return {name: text for name, text in bindings.items() if not name.endswith(_FREE)}


def _marker(path: epath.Path) -> epath.Path:
  return path.with_name(f"{path.name}.COMPLETED")


def _recorded(marker: epath.Path) -> dict[str, Any]:
  """Returns the record in a marker, which may be empty."""
  text = marker.read_bytes()
  with contextlib.suppress(ValueError, RecursionError):
    recorded = json.loads(text or "{}")
    if isinstance(recorded, dict) and isinstance(recorded.get("settings", {}), dict):
      return recorded
  raise ValueError(
    f"{marker} is damaged: expected a size and a SHA-256 as JSON, got {text[:80]!r}. "
    f"Delete {marker} and {str(marker).removesuffix('.COMPLETED')}, and run the "
    "command again."
  )


def _check(path: epath.Path, marker: epath.Path, purpose: str) -> None:
  """Raises a ValueError if a file differs from the marker's size and SHA-256."""
  recorded = _recorded(marker)
  expected = {name: recorded.get(name) for name in ("bytes", "sha256")}
  actual = digest(path) if path.exists() else "no file"
  if actual != expected:
    raise ValueError(
      f"{path} is damaged: {marker.name} records {expected}, found {actual}. Nothing "
      f"was overwritten. Delete {path} and {marker} {purpose}."
    )
