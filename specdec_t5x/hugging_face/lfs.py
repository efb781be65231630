"""Pointers of Git LFS: a few lines of text that a clone has in place of large files."""

import os
import pathlib

_BEGINNING = b"version https://git-lfs.github.com/spec/v1"
# Git LFS's specification limits a pointer to fewer bytes.
_LIMIT = 1024


def is_pointer(contents: bytes) -> bool:
  """Returns whether a file with these contents is a pointer.

  >>> is_pointer(b"version https://git-lfs.github.com/spec/v1 ...")
  True
  """
  return contents.startswith(_BEGINNING) and len(contents) < _LIMIT


def check_file(path: str | os.PathLike, contents: bytes | None = None) -> None:
  """Raises a ValueError if a file is a pointer.

  Args:
    path: path of the file. An unreadable file passes, because the file's reader gives
      the reason.
    contents: contents of the file; None reads a local file.
  """
  if contents is None:
    contents = _beginning(pathlib.Path(path))
  if is_pointer(contents):
    raise ValueError(_message(path, pathlib.Path(path).parent))


def check_folder(folder: str | os.PathLike) -> None:
  """Raises a ValueError if any file below a local folder is a pointer."""
  if "://" in str(folder):
    return
  for path in sorted(pathlib.Path(folder).rglob("*")):
    if is_pointer(_beginning(path)):
      raise ValueError(_message(path, folder))


def _beginning(path: pathlib.Path) -> bytes:
  """Returns the start of a file; no bytes for an unreadable file."""
  try:
    with path.open("rb") as file:
      return file.read(_LIMIT)
  except OSError:
    return b""


def _message(path, folder) -> str:
  return (
    f"{path} is a pointer of Git LFS, a text without the file's content. Run `git lfs "
    f"pull` in {folder}."
  )
