"""A SentencePiece vocabulary without TensorFlow: the tokens and texts of seqio's."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterable
from typing import Any

import sentencepiece
from etils import epy
from sentencepiece import sentencepiece_model_pb2 as proto

from specdec_t5x.data import reading

with epy.lazy_imports():
  import seqio

_SENTINEL = proto.ModelProto.SentencePiece.USER_DEFINED


@dataclasses.dataclass(frozen=True, eq=False)
class SentencePieceVocabulary:
  """Stands in for seqio.SentencePieceVocabulary where seqio is not imported.

  What it lacks (tensors' encoding, say) is seqio's, which is then imported.

  Attributes:
    sentencepiece_model_file: the path of the model.
    extra_ids: the number of sentinels after the pieces, the last one first.
  """

  sentencepiece_model_file: str
  extra_ids: int = 0

  @property
  def tokenizer(self) -> sentencepiece.SentencePieceProcessor:
    """The model with its sentinels."""
    return _load(self.sentencepiece_model_file, self.extra_ids)

  @property
  def pad_id(self) -> int:
    """Padding is 0, as seqio has it."""
    return 0

  @property
  def eos_id(self) -> int:
    """The end of sequence."""
    return self.tokenizer.eos_id()

  @property
  def unk_id(self) -> int:
    """The unknown token."""
    return self.tokenizer.unk_id()

  @property
  def vocab_size(self) -> int:
    """The number of tokens, sentinels included."""
    return self.tokenizer.GetPieceSize()

  def encode(self, text: str) -> list[int]:
    """Returns a text's tokens, without EOS."""
    return self.tokenizer.EncodeAsIds(text)

  def decode(self, tokens: Iterable[int]) -> str:
    """Returns the text up to the first EOS; tokens that are no pieces are unknown."""
    size, tokens = self.vocab_size, list(tokens)
    if self.eos_id in tokens:
      tokens = tokens[: tokens.index(self.eos_id) + 1]
    known = [self.unk_id if token >= size else int(token) for token in tokens]
    return self.tokenizer.DecodeIds(known)

  def __eq__(self, other: object) -> bool:
    """Returns whether the other has the same model and sentinels, seqio's or not."""
    return isinstance(other, _kinds()) and _identity(self) == _identity(other)

  def __hash__(self) -> int:
    return hash(_identity(self))

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):  # Python asks for many that no vocabulary has.
      raise AttributeError(name)
    return getattr(_of_seqio(self.sentencepiece_model_file, self.extra_ids), name)


def _kinds() -> tuple[type, ...]:
  found = sys.modules.get("seqio")
  of_seqio = (found.SentencePieceVocabulary,) if found else ()
  return (SentencePieceVocabulary, *of_seqio)


def _identity(vocabulary: Any) -> tuple[str, int]:
  return vocabulary.sentencepiece_model_file, vocabulary.extra_ids


@functools.cache
def _load(path: str, extra_ids: int) -> sentencepiece.SentencePieceProcessor:
  model = reading.read_bytes(path)
  if extra_ids:
    parsed = proto.ModelProto.FromString(model)
    for number in reversed(range(extra_ids)):
      parsed.pieces.add(piece=f"▁<extra_id_{number}>", score=0.0, type=_SENTINEL)
    model = parsed.SerializeToString()
  return sentencepiece.SentencePieceProcessor(model_proto=model)


@functools.cache
def _of_seqio(path: str, extra_ids: int) -> seqio.SentencePieceVocabulary:
  return seqio.SentencePieceVocabulary(path, extra_ids=extra_ids)
