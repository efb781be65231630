"""The synthetic English-German corpus: rows of a split, and its English as texts."""

import functools

from specdec_t5x.demo.corpora import sentences, splits

# Sentences of a text for language modelling: one alone is soon at its end.
_SENTENCES = 4


@functools.lru_cache(maxsize=4)
def rows(split: str, size: int, seed: int = 0) -> tuple[splits.Row, ...]:
  """Returns (English, German) pairs of a split, see `splits.generate`.

  They are kept: a task, its vocabulary and a repeated epoch ask for the same rows.
  """
  return tuple(splits.generate(sentences.pair, split, size, seed))


def english_texts(split: str, size: int, seed: int = 0) -> list[str]:
  """Returns texts of a split, each of four English sentences, in the rows' order."""
  english = [source for source, _ in rows(split, _SENTENCES * size, seed)]
  return [" ".join(group) for group in zip(*[iter(english)] * _SENTENCES, strict=True)]
