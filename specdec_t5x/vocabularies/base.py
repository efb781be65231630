"""The interface of a vocabulary. It has the members of seqio.Vocabulary in use here."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from etils import epy

with epy.lazy_imports():
  import tensorflow as tf

# Stands for a space in a piece.
SPACE = "▁"


class Vocabulary(abc.ABC):
  """Turns texts into token ids and back.

  Both entry points, gin's and Python's, read and write texts by an object of this
  class. seqio accepts the object in place of a seqio.Vocabulary.

  Attributes:
    path: file or folder of the vocabulary.
    eos_id: EOS, the last token of targets; None or -1 without EOS.
    end_ids: tokens that end an output. `eos_id` may be absent.
    prefix: tokens in front of each input.
    suffix: tokens behind each input.
    hidden: tokens without text: padding, beginnings and ends.
    extra_ids: number of sentinels that seqio counts apart. Sentinels are ordinary
      tokens here, so the number is 0.
  """

  path: str
  eos_id: int | None
  end_ids: tuple[int, ...]
  prefix: tuple[int, ...] = ()
  suffix: tuple[int, ...] = ()
  hidden: frozenset[int] = frozenset()
  extra_ids = 0
  pad_id = 0

  @property
  @abc.abstractmethod
  def vocab_size(self) -> int:
    """The largest token id, plus 1."""

  @abc.abstractmethod
  def encode(self, text: str) -> list[int]:
    """Returns a text's tokens, without `prefix` and `suffix`."""

  @abc.abstractmethod
  def piece(self, token: int) -> str:
    """Returns the spelling of a token, with `SPACE` for a space."""

  @abc.abstractmethod
  def _text(self, tokens: Sequence[int]) -> str:
    """Returns the text of tokens without hidden tokens."""

  def decode(self, tokens: Iterable[int]) -> str:
    """Returns the text of tokens, up to the first end token."""
    kept = []
    for token in map(int, tokens):
      if token in self.end_ids:
        break
      if token not in self.hidden:
        kept.append(token)
    return self._text(kept)

  # ---- For seqio. ----

  def encode_tf(self, text: tf.Tensor) -> tf.Tensor:
    """Returns the tokens of a scalar text as an int32 tensor."""

    def encode(found: np.ndarray) -> np.ndarray:
      text = tf.compat.as_text(np.asarray(found, object).item())
      return np.array(self.encode(text), np.int32)

    tokens = tf.numpy_function(encode, [text], tf.int32, stateful=False)
    tokens.set_shape([None])
    return tokens

  def decode_tf(self, tokens: tf.Tensor) -> tf.Tensor:
    """Returns the text of tokens [T], or the texts of rows [B, T]."""

    def decode(rows: np.ndarray) -> np.ndarray:
      texts = [self.decode(row).encode("utf-8") for row in np.atleast_2d(rows)]
      return np.array(texts[0] if rows.ndim < 2 else texts, object)

    return tf.numpy_function(decode, [tokens], tf.string, stateful=False)

  def __eq__(self, other: Any) -> bool:
    if type(self) is not type(other) or self.path != other.path:
      return False
    # A folder may have been opened with another number of sentinels, or changed.
    return (self.vocab_size, self.end_ids) == (other.vocab_size, other.end_ids)

  def __hash__(self) -> int:
    return hash((type(self), self.path))

  def __repr__(self) -> str:
    return f"{type(self).__name__}({self.path!r}, extra_ids={self.extra_ids})"
