"""The files of an inference run: locks, chunks, JSON lines and the merged result.

A killed run resumes after the complete chunks. A file of this module is written
whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import jax
import numpy as np
from absl import logging
from etils import epath, epy

from t5x import messages
from t5x.plain_tasks import Rows
from t5x.utils import plain

with epy.lazy_imports():
  import seqio

MODES = ("predict", "score", "predict_with_aux")
# (predictions, auxiliary values), with one entry per example, in the input's order.
Inferences = tuple[Sequence[Any], Mapping[str, Any]]

# Settings that may differ in a rerun, because the directory may have been moved.
_FREE = ("INFER_OUTPUT_DIR", "infer.output_dir")
_ADVICE = {
  errno.ENOSPC: "free space",
  errno.EDQUOT: "free space, or ask for a larger quota",
  errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
  errno.EACCES: "get the permission to write to the folder",
  errno.EPERM: "get the permission to write to the folder",
  errno.EROFS: "make the file system writable",
  errno.ENOTDIR: "choose a folder that is not below a file",
}
# Error numbers of file systems without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


# ---- Writes: whole files, locks, and errors with the fix. ----


@contextlib.contextmanager
def writing(
  what: str,
  directory: epath.PathLike,
  kept: str = "",
  macro: str = "INFER_OUTPUT_DIR",
) -> Iterator[None]:
  """Turns an OSError of the block into a ValueError with a fix.

  Args:
    what: name of the written file or files.
    directory: the folder of results.
    kept: a clause about the results that the run keeps after the error.
    macro: the macro with `directory`.

  Raises:
    ValueError: if the file system refuses a write.
  """
  try:
    yield
  except OSError as raised:
    error = raised
    # Only the first error has a number: gin raises copies with the text alone.
    while error.errno is None and isinstance(error.__context__, OSError):
      error = error.__context__
    reason = error.strerror or str(error)
    where = f": {error.filename}" if error.filename else ""
    advice = _ADVICE.get(error.errno, "correct the cause")
    advice = f"{kept}: {advice}" if kept else advice.capitalize()
    raise ValueError(
      f"{macro}={directory}: {what} could not be written ({reason}{where}). "
      f"{advice} and run the command again."
    ) from raised


def is_local(path: epath.Path) -> bool:
  """Returns whether `path` is in a file system, and not in a bucket (gs://)."""
  return "://" not in str(path)


@contextlib.contextmanager
def whole_file(path: epath.Path, partial: epath.Path) -> Iterator[epath.Path]:
  """Yields `partial` to write to, and renames it to `path` if the block succeeds.

  After a kill or an error, `path` is either complete or unchanged.
  """
  try:
    yield partial
    if is_local(partial):
      # Quotas and network file systems may refuse a write as late as in fsync.
      with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
  finally:
    # After an error, a second error of `unlink` would hide the first error.
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)


@contextlib.contextmanager
def only_job(path: epath.Path, name: str) -> Iterator[None]:
  """Holds the lock file `path` during the block, so that no second job gets the lock.

  The kernel frees the lock when the job ends or is killed, so the lock file of a killed
  job locks nothing. After the block, the lock file is removed, and also the directories
  that were created for the lock file, if empty. Buckets (gs://) have no locks: two jobs
  that write the same results in a bucket get no error.

  Args:
    path: path of the lock file; the directory is created.
    name: name of the locked results, for messages.

  Raises:
    ValueError: if another job holds the lock.
    OSError: if the file can't be created.
  """
  if not is_local(path):
    yield
    return
  new_folders = [parent for parent in path.parents if not parent.exists()]
  file = _locked(path, name)
  try:
    file.truncate(0)
    file.write(f"pid {os.getpid()} on {socket.gethostname()}")
    file.flush()
    yield
  finally:
    # The file is removed before the lock is freed: another job that has opened the file
    # then sees that the file is gone. Errors are harmless (a directory with results, a
    # read-only disk), because a file without a holder locks nothing.
    with contextlib.suppress(OSError):
      path.unlink()
      for directory in new_folders or [path.parent]:
        os.rmdir(directory)  # epath's rmdir would also remove the contents.
    file.close()


def _locked(path, name):
  """Opens and locks the lock file, and creates the directory if missing."""
  for attempt in itertools.count():
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      file = open(path, "a+")  # noqa: SIM115
    except (FileNotFoundError, FileExistsError):
      # A job that has just ended may remove the directory between the two calls.
      if attempt >= 99:
        raise
      continue
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      file.seek(0)
      holder = file.read() or "a process that has just started"
      file.close()
      raise ValueError(
        f"INFER_OUTPUT_DIR={path.parent.parent}: another job ({holder}) is writing "
        f"{name} in the folder. Nothing was changed. Wait until the job has ended and "
        "run the command again, or choose another INFER_OUTPUT_DIR."
      ) from error
    except OSError as error:
      if error.errno not in _NO_LOCKS:
        file.close()
        raise
      messages.say(
        f"{path.parent} is on a file system without locks ({error.strerror}): make "
        f"sure that only one job writes {name}."
      )
      return file
    with contextlib.suppress(FileNotFoundError):
      if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        return file
    # The former holder removed the file between `open` and `flock`: try again.
    file.close()


# ---- Chunks. ----


class ChunkFiles:
  """The files of a task's run; a chunk counts when the marker records the settings.

  Args:
    output_dir: directory for results.
    task: name of the task.
    suffix: `<mode>.<extension>-<shard>-of-<shards>`.
    settings: settings that must be the same in a rerun; a caller may add some before
      `finished`.
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
    self.settings = json.loads(json.dumps(settings))
    # The number of examples of each complete chunk: found, or written since.
    self.done: dict[int, int] = {}

  def lock(self) -> contextlib.AbstractContextManager:
    """Locks the files against other jobs, in the first process only."""
    if jax.process_index() != 0:
      return contextlib.nullcontext()
    return only_job(self.directory / f".{self._fname}.lock", self._fname)

  def finished(self) -> str:
    """Returns a message if the task is done; '' means that chunks are left to decode.

    Raises:
      ValueError: if the result differs from the marker, or has other settings.
    """
    if not self.marker.exists():
      return ""
    recorded = _recorded(self.marker)
    note = f"{self.marker} exists: the run is finished. Remove the file to run again."
    if not recorded:  # The marker is upstream T5X's.
      return f"{note} The settings of the earlier run are unknown."
    _check_size(self.result, self.marker, recorded)
    # A run that was killed after writing the marker may have left chunks.
    if jax.process_index() == 0 and self.directory.exists():
      self.remove()
    if changes := self._changes(recorded["settings"]):
      raise ValueError(
        f"INFER_OUTPUT_DIR={self.output_dir} holds a finished run with other settings: "
        f"{changes}. Choose another directory, or remove {self.marker} and the marked "
        "file to run again."
      )
    return note

  def find_done(self) -> None:
    """Finds the complete chunks.

    Raises:
      ValueError: if a chunk is truncated, or has other settings.
    """
    self.done = {}
    for path in _numbered(self.directory, f"{self._fname}-chunk", ".COMPLETED"):
      marker = path.with_name(f"{path.name}.COMPLETED")
      recorded = _recorded(marker) if path.exists() else {}
      # Markers of upstream T5X are empty. A chunk with such a marker is decoded again,
      # to the same lines.
      if not recorded.keys() >= {"settings", "examples"}:
        continue
      _check_size(path, marker, recorded)
      if changes := self._changes(recorded["settings"]):
        raise ValueError(
          f"{self.directory} holds chunks of an unfinished run with other settings: "
          f"{changes}. Delete the directory to start over, or set the old values to "
          "resume."
        )
      self.done[int(path.name.rpartition("-chunk")[2])] = recorded["examples"]

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
      marker = path.with_name(f"{path.name}.COMPLETED")
      self._mark(marker, {"bytes": path.stat().length, "examples": examples})
    self.done[chunk] = examples

  def kept(self, total: int | None) -> str:
    """Returns a sentence on the chunks that are done, and on how to go on.

    Args:
      total: number of examples of this run; None if unknown.
    """
    if not self.done:
      return "No results are kept. Run the same command to start again."
    count = sum(self.done.values())
    of_total = "" if total is None else f" of {total}"
    return (
      f"The results of {count}{of_total} examples are kept in {self.directory}. Run "
      "the same command to decode the remaining examples."
    )

  def finish(self, count: int, merge_fn: Callable[..., None], step: int) -> None:
    """Merges the chunks, marks the task as done, and removes the chunks.

    Args:
      count: number of chunks.
      merge_fn: (output_dir, fname, directory, step) -> None.
      step: step of the checkpoint.

    Raises:
      ValueError: if a chunk is missing or truncated, the merged lines are not one per
        example, or the file system refuses a write.
    """
    self.find_done()
    chunks = set(self.done)
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
      merge_fn(str(self.output_dir), self._fname, str(self.directory), step)
      self._check_lines(sum(self.done.values()))
      self._mark(self.marker, {"bytes": self.result.stat().length})
    # The removal comes after the marker, so that a run killed in between has results.
    self.remove()

  def remove(self) -> None:
    """Removes this run's chunks, but not the chunks of other modes.

    The directory still holds the lock. Releasing the lock removes the directory if the
    directory is empty.
    """
    for file in self.directory.iterdir():
      if file.name.startswith((f"{self._fname}-", f".partial-{self._fname}-")):
        file.unlink()

  def _check_lines(self, examples: int) -> None:
    """Raises a ValueError if the merged JSON lines are not one per example."""
    if ".jsonl-" not in self._fname:
      return
    with self.result.open("rb") as file:
      lines = sum(1 for _ in file)
    if lines != examples:
      raise ValueError(
        f"{self.result} has {lines} lines, expected {examples}, one per example. The "
        f"chunks are kept in {self.directory}. Check infer.write_fn and infer.merge_fn."
      )

  def _changes(self, before: Mapping[str, Any]) -> str:
    """Returns the changes since the settings `before`, in words; '' means no change."""
    now = self.settings
    names = [n for n in {**before, **now} if before.get(n) != now.get(n)]
    return "; ".join(f"{n} was {before.get(n)}, is {now.get(n)}" for n in names)

  def _writing(self, what: str) -> contextlib.AbstractContextManager:
    count = len(self.done)
    kept = ("", "The earlier chunk is kept", f"The {count} earlier chunks are kept")
    return writing(what, self.output_dir, kept[min(count, 2)])

  def _partial(self, path: epath.Path) -> epath.Path:
    suffix = path.name.removeprefix(f"{self._fname}-")
    return self.directory / f".partial-{self._fname}-{os.getpid()}-{suffix}"

  def _mark(self, marker: epath.Path, written: Mapping[str, Any]) -> None:
    with whole_file(marker, self._partial(marker)) as partial:
      partial.write_text(json.dumps({**written, "settings": self.settings}))


def configuration() -> dict[str, str]:
  """Returns gin's bindings by name, except for the output directory."""
  lines = gin.config_str(max_line_length=10**5).splitlines()  # One binding per line.
  bindings = (x.split(" = ", 1) for x in lines if " = " in x and not x.startswith("#"))
  return {name: text for name, text in bindings if not name.endswith(_FREE)}


def _recorded(marker: epath.Path) -> dict[str, Any]:
  """Returns the record in a marker, which may be empty."""
  text = marker.read_bytes()
  with contextlib.suppress(ValueError, RecursionError):
    recorded = json.loads(text or "{}")
    if isinstance(recorded, dict) and isinstance(recorded.get("settings", {}), dict):
      return recorded
  raise ValueError(
    f"{marker} is damaged: expected settings as JSON, got {text[:80]!r}. Delete "
    f"{marker} and {str(marker).removesuffix('.COMPLETED')}, and run the command again."
  )


def _check_size(path: epath.Path, marker: epath.Path, recorded: Mapping) -> None:
  """Raises a ValueError if a file does not have the size that the marker records."""
  size = path.stat().length if path.exists() else None
  if size != recorded.get("bytes"):
    raise ValueError(
      f"{path} is damaged: {marker.name} records {recorded.get('bytes')} bytes, found "
      f"{size}. Nothing was overwritten. Delete {path} and {marker}, and run the "
      "command again."
    )


def _numbered(directory: epath.Path, prefix: str, suffix: str) -> list[epath.Path]:
  """Returns the paths <prefix><number> of the files <prefix><number><suffix>, in order.

  The sorted names are not in the chunks' order: numbers have five digits or more.
  """
  paths = {}
  for file in directory.iterdir() if directory.exists() else ():
    name = file.name.removesuffix(suffix)
    number = name.removeprefix(prefix)
    if file.name == f"{prefix}{number}{suffix}" and number.isdecimal():
      paths[int(number)] = file.with_name(name)
  return [paths[number] for number in sorted(paths)]


def merge_chunks_to_file(
  output_dir: str, output_fname: str, tmp_dir: str, step: int | None
) -> None:
  """Merges the chunks of a finished task into one file, in order.

  A shard without examples gives an empty file.

  Args:
    output_dir: directory for the result.
    output_fname: name of the result.
    tmp_dir: directory of the chunks, `<output_fname>-chunk00000` and so on.
    step: step of the checkpoint, unused.

  Raises:
    ValueError: if the only shard has no chunks.
  """
  del step
  prefix = f"{output_fname}-chunk"
  chunks = _numbered(epath.Path(tmp_dir), prefix, "")
  num_shards = output_fname.rpartition("-of-")[2]
  if not chunks and not (num_shards.isdecimal() and int(num_shards) > 1):
    raise ValueError(
      f"{tmp_dir} has no results: the input had no examples. Check the task's split."
    )
  path = epath.Path(output_dir) / output_fname
  partial = path.with_name(f"{path.name}.partial")
  with whole_file(path, partial), partial.open("wb") as merged:
    for chunk in chunks:
      with chunk.open("rb") as part:
        shutil.copyfileobj(part, merged)
  logging.info("Results written to %s.", path)


# ---- JSON lines. ----


def write_inferences_to_file(
  path: str,
  inferences: Inferences,
  task_ds,
  mode: str,
  vocabulary: seqio.Vocabulary | None = None,
  output_ids: bool = False,
) -> None:
  """Writes one JSON line per example: texts, the prediction or score, and aux.

  Args:
    path: path of the file.
    inferences: predictions (token ids, or scores in mode score) and auxiliary values.
    task_ds: the examples, in the same order.
    mode: predict, score or predict_with_aux.
    vocabulary: decodes token ids; required except in mode score.
    output_ids: whether to write token ids beside the text.

  Raises:
    ValueError: if the mode is unknown, or the vocabulary is missing.
  """
  if mode not in MODES:
    raise ValueError(f"mode must be one of {MODES}, got {mode!r}.")
  if mode != "score" and vocabulary is None:
    raise ValueError(
      f"Mode {mode} writes text and needs a vocabulary, got None. Pass a vocabulary."
    )

  def is_column(value) -> bool:
    return isinstance(value, np.ndarray | list)

  def encoded(value):
    # Imports seqio only for a value that json does not know.
    return seqio.TensorAndNumpyEncoder().default(value)

  predictions, aux = inferences
  texts = []
  if mode != "score" and isinstance(task_ds, Rows):
    texts = [_decode_plainly(vocabulary, np.asarray(row)) for row in predictions]
  elif mode != "score":
    texts = _decode(vocabulary, predictions)
  with epath.Path(path).open("w") as file:
    for i, example in enumerate(task_ds.as_numpy_iterator()):
      texts_of = {k: x for k, x in example.items() if k.endswith("_pretokenized")}
      record = {"inputs": {k: plain(x) for k, x in texts_of.items()}}
      if mode == "score":
        record["score"] = plain(predictions[i])
      else:
        record["prediction"] = texts[i]
        if output_ids:
          tokens = plain(predictions[i])
          length = tokens.index(0) if 0 in tokens else len(tokens)
          record["prediction_tokens"] = tokens[:length]
      if mode == "predict_with_aux" or (mode == "score" and aux):
        row = jax.tree.map(lambda column, i=i: column[i], aux, is_leaf=is_column)
        record["aux"] = jax.tree.map(plain, row)
      file.write(json.dumps(record, default=encoded) + "\n")


def _decode(vocabulary, predictions):
  """Returns the text of each prediction, or the texts of each prediction's decodes."""
  rows = [np.asarray(tokens) for tokens in predictions]
  has_one_shape = len({row.shape for row in rows}) == 1
  if has_one_shape and hasattr(vocabulary, "sentencepiece_model_file"):
    # One call for all rows: 20 calls of TensorFlow may take longer than the model.
    tokens = np.stack(rows)
    texts = vocabulary.decode_tf(tokens.reshape(-1, tokens.shape[-1])).numpy()
    rows = texts.reshape(tokens.shape[:-1])
  else:
    rows = [vocabulary.decode_tf(row).numpy() for row in rows]
  return [plain(row) for row in rows]


def _decode_plainly(vocabulary, tokens):
  """Returns the text of a prediction, or its decodes' texts, without TensorFlow."""
  if tokens.ndim > 1:
    return [_decode_plainly(vocabulary, row) for row in tokens]
  return vocabulary.decode(tokens.tolist())
