"""Tables as text, for people."""

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]]) -> str:
  """Returns rows of cells as columns of equal width."""
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  lines = (
    "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    for row in cells
  )
  return "\n".join(line.rstrip() for line in lines)
