"""How much of a checkpoint is on its way through host memory at once.

Arrays are read largest first: what is on its way beside the restored parameters then
shrinks while they grow, and the most that is ever held is little more than they are.
"""

import contextlib
import math
import threading
from collections.abc import Iterator, Mapping

# What is read at once: this part of all, which reading holds two or three times
# (compressed, decompressed, cast), but enough to keep a disk and some cores busy.
_PART = 1 / 64
_LEAST = 32 * 1024 * 1024


def at_once(sizes: Mapping[str, int]) -> int:
  """Returns how many bytes of arrays of these sizes to read at once."""
  return max(_LEAST, int(_PART * sum(sizes.values())))


class Budget:
  """Bytes that threads may have on their way at once."""

  def __init__(self, size: int):
    self._size = self._free = size
    self._changed = threading.Condition()

  @contextlib.contextmanager
  def hold(self, count: int) -> Iterator[None]:
    """Waits until `count` bytes are free, or all where it is more than there are."""
    count = min(count, self._size)
    with self._changed:
      self._changed.wait_for(lambda: self._free >= count)
      self._free -= count
    try:
      yield
    finally:
      with self._changed:
        self._free += count
        self._changed.notify_all()


def largest_first(sizes: Mapping[str, int]) -> list[str]:
  """Returns the names by falling size."""
  return sorted(sizes, key=lambda name: (-sizes[name], name))


def groups(sizes: Mapping[str, int]) -> list[list[str]]:
  """Returns the names in groups of at most `at_once` bytes, the largest first.

  A group has at least one name, however large it is.
  """
  most, held = at_once(sizes), math.inf
  grouped = []
  for name in largest_first(sizes):
    if held + sizes[name] > most:
      grouped.append([])
      held = 0
    grouped[-1].append(name)
    held += sizes[name]
  return grouped
