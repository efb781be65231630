"""The synthetic English-German corpus: rows of a split."""

import functools

from specdec_t5x.data.demo import sentences, splits


@functools.lru_cache(maxsize=4)
def rows(split: str, size: int, seed: int = 0) -> tuple[splits.Row, ...]:
  """Returns (English, German) pairs of a split, see `splits.generate`.

  They are kept: a task, its vocabulary and a repeated epoch ask for the same rows.
  """
  return tuple(splits.generate(sentences.pair, split, size, seed))
