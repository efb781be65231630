"""Tables as text, for people."""

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]]) -> str:
  """Returns rows of cells as columns of equal width."""
  return "\n".join("  ".join(row).rstrip() for row in padded(cells))


def padded(cells: Sequence[Sequence[str]]) -> list[list[str]]:
  """Returns rows of cells, those of a column at equal width."""
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  line = lambda row: [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
  return [line(row) for row in cells]
