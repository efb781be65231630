"""Tables as plain text."""

from collections.abc import Sequence


def aligned(cells: Sequence[Sequence[str]]) -> str:
  """Returns rows of cells as columns of equal width."""
  return "\n".join("  ".join(row).rstrip() for row in padded(cells))


def padded(cells: Sequence[Sequence[str]]) -> list[list[str]]:
  """Returns rows of cells, padded to equal width in each column."""
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  return [list(map(str.ljust, row, widths)) for row in cells]
