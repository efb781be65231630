"""Limits the host memory of reading and writing checkpoints.

Arrays pass through host memory in groups, with the largest arrays first. The groups
shrink while the restored parameters grow, so the peak is little more than the size of
the parameters.
"""

import math
from collections.abc import Mapping

# A group is this part of all bytes, because reading holds two or three copies of the
# group (compressed, decompressed, cast). `_LEAST` bytes keep a disk and several cores
# busy.
_PART = 1 / 64
_LEAST = 32 * 1024 * 1024


def groups(sizes: Mapping[str, int]) -> list[list[str]]:
  """Groups the names of arrays by size, with the largest arrays first.

  A group has at least one array, and further arrays up to the limit of bytes.

  Args:
    sizes: bytes of arrays by name.
  """
  limit = max(_LEAST, int(_PART * sum(sizes.values())))
  group_size = math.inf
  grouped = []
  for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
    if group_size + sizes[name] > limit:
      grouped.append([])
      group_size = 0
    grouped[-1].append(name)
    group_size += sizes[name]
  return grouped
