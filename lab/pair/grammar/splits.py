"""Disjoint splits by construction: a text's hash determines the split."""

import random
import zlib
from collections.abc import Callable

SPLITS = ("train", "validation", "test")
# Of twenty residues, one belongs to validation and one to test.
_RESIDUES = 20
# After so many unusable draws in a row, the grammar has too few texts.
_PATIENCE = 20_000

Row = tuple[str, str]


def split_of(source: str) -> str:
  """Returns the split of a source text, which is the same for all seeds."""
  residue = zlib.crc32(source.encode()) % _RESIDUES
  return {0: "validation", 1: "test"}.get(residue, "train")


def generate(
  sample: Callable[[random.Random], Row], split: str, size: int, seed: int
) -> list[Row]:
  """Draws distinct rows of a split.

  Args:
    sample: draws a (source, target) row.
    split: train, validation or test.
    size: the number of rows.
    seed: equal seeds give equal rows; a larger size adds rows at the end.

  Returns:
    `size` rows with distinct sources.

  Raises:
    ValueError: if `sample` has fewer texts.
  """
  rng = random.Random(f"{split} {seed}")
  rows: dict[str, str] = {}
  failed = 0
  while len(rows) < size:
    source, target = sample(rng)
    if split_of(source) == split and source not in rows:
      rows[source] = target
      failed = 0
    else:
      failed += 1
    if failed > _PATIENCE:
      raise ValueError(
        f"Found only {len(rows)} distinct examples for {split!r}, expected {size}. Ask "
        "for fewer examples."
      )
  return list(rows.items())
