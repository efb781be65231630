"""What keeps an output directory safe: locks, whole files, errors with advice."""

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import os
import socket
import sys
from collections.abc import Iterator

from etils import epath

_ADVICE = {
  errno.ENOSPC: "free space",
  errno.EDQUOT: "free space, or ask for a larger quota",
  errno.EFBIG: "raise the limit on a file's size (ulimit -f)",
  errno.EACCES: "give yourself the right to write there",
  errno.EPERM: "give yourself the right to write there",
  errno.EROFS: "make the file system writable",
}
# File systems that have no locks say so by one of these.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextlib.contextmanager
def writing(what: str, directory: epath.PathLike, kept: str = "") -> Iterator[None]:
  """Turns an OSError of the block into a ValueError that says what to do.

  Args:
    what: is written.
    directory: INFER_OUTPUT_DIR.
    kept: what the run has so far, and what becomes of it.

  Raises:
    ValueError: where the file system refuses.
  """
  try:
    yield
  except OSError as raised:
    error = _first(raised)
    reason = error.strerror or str(error)
    where = f": {error.filename}" if error.filename else ""
    advice = _ADVICE.get(error.errno, "put that right")
    advice = f"{kept}: {advice}" if kept else advice.capitalize()
    raise ValueError(
      f"INFER_OUTPUT_DIR={directory}: {what} could not be written ({reason}{where}). "
      f"{advice} and run the same command again."
    ) from raised


def _first(error: OSError) -> OSError:
  """Returns the error with its number: gin raises copies that have only the text."""
  while error.errno is None and isinstance(error.__context__, OSError):
    error = error.__context__
  return error


@contextlib.contextmanager
def whole_file(path: epath.Path, partial: epath.Path) -> Iterator[epath.Path]:
  """Gives `partial` to write to; a kill or an error leaves all of `path` or nothing."""
  try:
    yield partial
    if is_local(partial):
      # Quotas and network file systems may refuse as late as this.
      with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
  finally:
    # After an error. One of this, too, would hide the first, which says more.
    with contextlib.suppress(OSError):
      partial.unlink(missing_ok=True)


def digest(path: epath.Path) -> dict[str, int | str]:
  """Returns the size in bytes and the SHA-256 of a file."""
  with path.open("rb") as file:
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": file.tell(), "sha256": sha256}


def is_local(path: epath.Path) -> bool:
  """Whether `path` is in this machine's file systems, not in a bucket (gs://)."""
  return "://" not in str(path)


@contextlib.contextmanager
def only_job(path: epath.Path, name: str) -> Iterator[None]:
  """Holds the lock file `path`, which no second job gets meanwhile.

  The kernel frees the lock when its holder ends, however it ends; the file that a
  killed job leaves locks nothing. Afterwards the file is gone, and so are the
  directories that were made for it, if empty. Buckets (gs://) have no locks: two jobs
  that write the same results there are not told.

  Args:
    path: the lock file; its directory is made.
    name: of what is locked, for messages.

  Raises:
    ValueError: where another job holds it.
    OSError: where the file can't be made.
  """
  if not is_local(path):
    yield
    return
  made = [parent for parent in path.parents if not parent.exists()]
  file = _locked(path, name)
  try:
    file.truncate(0)
    file.write(f"pid {os.getpid()} on {socket.gethostname()}")
    file.flush()
    yield
  finally:
    # Removed while still held: who opened it meanwhile sees that it is gone. What can't
    # be removed (a directory with results in it, a read-only disk) locks nothing.
    with contextlib.suppress(OSError):
      path.unlink()
      for directory in made or [path.parent]:
        os.rmdir(directory)  # epath's looks first, and then removes what is inside.
    file.close()


def _locked(path, name):
  """Returns the open lock file, locked."""
  while True:
    file = _opened(path)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      file.seek(0)
      holder = file.read() or "a process that has just begun"
      file.close()
      raise ValueError(
        f"INFER_OUTPUT_DIR={path.parent.parent}: another job is writing {name} there "
        f"({holder}), and this one has changed nothing. Wait until it has ended and "
        "run the same command again, or choose another INFER_OUTPUT_DIR."
      ) from error
    except OSError as error:
      if error.errno not in _NO_LOCKS:
        file.close()
        raise
      print(
        f"{path.parent} is on a file system without locks ({error.strerror}): see to "
        f"it that no second job writes {name}.",
        file=sys.stderr,
      )
      return file
    with contextlib.suppress(FileNotFoundError):
      if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        return file
    file.close()  # Its holder ended and removed it between our two calls: once more.


def _opened(path):
  for last in (*[False] * 99, True):
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      return open(path, "a+")
    # A job that has just ended removed the directory between two calls: once more.
    except (FileNotFoundError, FileExistsError):
      if last:
        raise


def files_named(directory: epath.Path, pattern: str) -> list[epath.Path]:
  """Returns a folder's files with names like a pattern, sorted.

  Unlike `glob`, it takes the folder's own name as it is, brackets included.
  """
  if not directory.exists():
    return []
  return sorted(
    path for path in directory.iterdir() if fnmatch.fnmatchcase(path.name, pattern)
  )
