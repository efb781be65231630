"""How much of a checkpoint is on its way through host memory at once.

Arrays go in groups, the largest first: what is on its way beside the restored
parameters then shrinks while they grow, and the most that is ever held is little more
than they are.
"""

import math
from collections.abc import Mapping

# What goes at once: this part of all, which reading holds two or three times
# (compressed, decompressed, cast), but enough to keep a disk and some cores busy.
_PART = 1 / 64
_LEAST = 32 * 1024 * 1024


def groups(sizes: Mapping[str, int]) -> list[list[str]]:
  """Returns the names of arrays of these bytes in groups, the largest first.

  A group holds as much as may be on its way at once, but at least one array.
  """
  most, held = max(_LEAST, int(_PART * sum(sizes.values()))), math.inf
  grouped = []
  for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
    if held + sizes[name] > most:
      grouped.append([])
      held = 0
    grouped[-1].append(name)
    held += sizes[name]
  return grouped
