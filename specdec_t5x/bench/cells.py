"""Measured cells, kept as soon as they are measured: a line of JSON each.

A cell is found again by its key, which holds every setting that determines it, the
device, the versions and this package's code among them. Nothing is ever taken out of
the file.
"""

import json
import os
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

FILE = "cells.jsonl"

Key = Mapping[str, Any]


class Cells:
  """The cells of one folder.

  Args:
    folder: where `cells.jsonl` is, or will be.
    report: is told about lines that can't be read.
  """

  def __init__(
    self,
    folder: str | os.PathLike,
    report: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
  ):
    self.path = pathlib.Path(folder) / FILE
    self._report = report
    self._asked: set[str] = set()
    self._results, self._whole = self._read()

  def find(self, key: Key) -> dict[str, Any] | None:
    """Returns the result measured with exactly this key, None where there is none."""
    name = _canonical(key)
    self._asked.add(name)
    return self._results.get(name)

  def add(self, key: Key, result: Mapping[str, Any]) -> None:
    """Keeps a result, on the disk before this returns."""
    name = _canonical(key)
    line = json.dumps({"key": json.loads(name), "result": result}) + "\n"
    self.path.parent.mkdir(parents=True, exist_ok=True)
    with self.path.open("a", encoding="utf-8") as file:
      # A line that a killed run left unfinished stays, on a line of its own.
      file.write(line if self._whole else f"\n{line}")
      file.flush()
      os.fsync(file.fileno())
    self._whole = True
    self._results[name] = json.loads(json.dumps(result))

  def unasked(self) -> int:
    """Returns how many cells `find` was not asked for; 0 if it was for none at all."""
    if not self._asked:
      return 0
    return len(self._results.keys() - self._asked)

  def _read(self):
    if not self.path.exists():
      return {}, True
    text = self.path.read_text(encoding="utf-8", errors="replace")
    results = {}
    for number, line in enumerate(text.split("\n"), start=1):
      if not line.strip():
        continue
      try:
        cell = json.loads(line)
        results[_canonical(cell["key"])] = cell["result"]
      except (ValueError, KeyError, TypeError):
        self._report(
          f"{self.path}, line {number}: not a whole cell, perhaps of a run that was "
          "killed. It is measured again where it is needed; the line stays as it is."
        )
    return results, text.endswith("\n") or not text


def _canonical(key: Key) -> str:
  return json.dumps(key, sort_keys=True)
