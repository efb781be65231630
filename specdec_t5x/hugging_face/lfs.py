"""Pointers of Git LFS: a few lines of text that a clone has in place of large files."""

import contextlib
import os
import pathlib

# Git LFS's specification limits a pointer to fewer bytes.
_LIMIT = 1024


def check(path: str | os.PathLike, contents: bytes | None = None) -> None:
  """Raises a ValueError if a file, or a file below a local folder, is a pointer.

  Args:
    path: path of the file or folder. An unreadable file passes, because the file's
      reader gives the reason.
    contents: contents of the file; None reads a local file.
  """
  if contents is None:
    if "://" in str(path):
      return
    local = pathlib.Path(path)
    for file in sorted(local.rglob("*")) if local.is_dir() else [local]:
      with contextlib.suppress(OSError), file.open("rb") as stream:
        check(file, stream.read(_LIMIT))
  elif contents.startswith(b"version https://git-lfs") and len(contents) < _LIMIT:
    raise ValueError(
      f"{path} is a pointer of Git LFS, a text without the file's content. Run `git "
      f"lfs pull` in {pathlib.Path(path).parent}."
    )
