"""Disjoint splits by construction: what a text hashes to says which split it is in."""

import random
import zlib
from collections.abc import Callable

SPLITS = ("train", "validation", "test")
# Of twenty residues, one is validation's and one is test's.
_RESIDUES = 20
# A grammar that repeats itself this often in a row has too few texts for the sizes.
_PATIENCE = 20_000

Row = tuple[str, str]


def split_of(source: str) -> str:
  """Returns the split that a source text belongs to, whatever the seed."""
  residue = zlib.crc32(source.encode()) % _RESIDUES
  return {0: "validation", 1: "test"}.get(residue, "train")


def generate(
  sample: Callable[[random.Random], Row], split: str, size: int, seed: int
) -> list[Row]:
  """Draws distinct rows of one split.

  Args:
    sample: draws one (source, target) row.
    split: train, validation or test.
    size: how many rows.
    seed: the same seed gives the same rows; a larger size starts with them.

  Returns:
    `size` rows with distinct sources.

  Raises:
    ValueError: `sample` does not have that many texts.
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
        "for fewer."
      )
  return list(rows.items())
