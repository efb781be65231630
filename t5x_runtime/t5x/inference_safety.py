"""Locks, atomic writes and helpful errors for an output directory."""

import contextlib
import errno
import fcntl
import fnmatch
import hashlib
import os
import socket
from collections.abc import Iterator

from etils import epath

from t5x import messages

_ADVICE = {
  errno.ENOSPC: "free space",
  errno.EDQUOT: "free space, or ask for a larger quota",
  errno.EFBIG: "raise the limit on file sizes (ulimit -f)",
  errno.EACCES: "get the permission to write to the folder",
  errno.EPERM: "get the permission to write to the folder",
  errno.EROFS: "make the file system writable",
}
# Error numbers of file systems without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextlib.contextmanager
def writing(what: str, directory: epath.PathLike, kept: str = "") -> Iterator[None]:
  """Turns an OSError of the block into a ValueError with a fix.

  Args:
    what: name of the written file or files.
    directory: INFER_OUTPUT_DIR.
    kept: a clause about the results that the run keeps after the error.

  Raises:
    ValueError: if the file system refuses a write.
  """
  try:
    yield
  except OSError as raised:
    error = _first(raised)
    reason = error.strerror or str(error)
    where = f": {error.filename}" if error.filename else ""
    advice = _ADVICE.get(error.errno, "correct the cause")
    advice = f"{kept}: {advice}" if kept else advice.capitalize()
    raise ValueError(
      f"INFER_OUTPUT_DIR={directory}: {what} could not be written ({reason}{where}). "
      f"{advice} and run the command again."
    ) from raised


def _first(error: OSError) -> OSError:
  """Returns the error with a number: gin raises copies with the text only."""
  while error.errno is None and isinstance(error.__context__, OSError):
    error = error.__context__
  return error


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


def digest(path: epath.Path) -> dict[str, int | str]:
  """Returns the size in bytes and the SHA-256 of a file."""
  with path.open("rb") as file:
    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": file.tell(), "sha256": sha256}


def is_local(path: epath.Path) -> bool:
  """Returns whether `path` is in a file system, and not in a bucket (gs://)."""
  return "://" not in str(path)


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
  """Opens and locks the lock file."""
  while True:
    file = _opened(path)
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


def _opened(path):
  """Opens a lock file, and creates the directory if missing."""
  for _ in range(99):
    # A job that has just ended may remove the directory between the two calls.
    with contextlib.suppress(FileNotFoundError, FileExistsError):
      path.parent.mkdir(parents=True, exist_ok=True)
      return open(path, "a+")
  path.parent.mkdir(parents=True, exist_ok=True)
  return open(path, "a+")


def files_named(directory: epath.Path, pattern: str) -> list[epath.Path]:
  """Returns a folder's files with names that match a pattern, sorted.

  Unlike in `glob`, brackets in the folder's name are not a pattern.
  """
  if not directory.exists():
    return []
  return sorted(
    path for path in directory.iterdir() if fnmatch.fnmatchcase(path.name, pattern)
  )
