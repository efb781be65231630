"""SentencePiece models: a file as seqio reads it, and a folder's with added tokens."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import sentencepiece
from etils import epy
from sentencepiece import sentencepiece_model_pb2 as proto

from specdec_t5x.vocabularies.added import AddedToken, AddedTokens
from specdec_t5x.vocabularies.base import SPACE, Vocabulary
from specdec_t5x.vocabularies.reading import read_bytes

with epy.lazy_imports():
  import seqio

_SENTINEL = proto.ModelProto.SentencePiece.USER_DEFINED
Processor = sentencepiece.SentencePieceProcessor


class _SentencePieces(Vocabulary):
  """The base of both kinds; `tokenizer` is the SentencePiece processor."""

  tokenizer: Processor

  @property
  def unk_id(self) -> int:
    """The unknown piece."""
    return self.tokenizer.unk_id()

  @property
  def vocab_size(self) -> int:
    return self.tokenizer.vocab_size()

  def encode(self, text: str) -> list[int]:
    return self.tokenizer.encode(text)

  def encode_part(self, text: str) -> list[int]:
    return _of_parts(self.tokenizer.serialized_model_proto()).encode(text)

  def piece(self, token: int) -> str:
    return self.tokenizer.id_to_piece(token) if self._is_piece(token) else ""

  def names(self) -> list[str | None]:
    return [
      None if self._is_no_text(token) else self.piece(token)
      for token in range(self.vocab_size)
    ]

  def _text(self, tokens: Sequence[int]) -> str:
    known = [token if self._is_piece(token) else self.unk_id for token in tokens]
    return self.tokenizer.decode(known)

  def _is_piece(self, token: int) -> bool:
    return token < self.tokenizer.vocab_size()

  def _is_no_text(self, token: int) -> bool:
    if not self._is_piece(token):
      return not self.piece(token)
    is_control = self.tokenizer.is_control(token)
    return is_control or self.tokenizer.is_unknown(token) or token in self.hidden


class SentencePieceVocabulary(_SentencePieces):
  """A SentencePiece file with sentinels behind its pieces, as seqio reads it.

  Nothing is read before the first text or token. Tokens and texts are those of
  seqio.SentencePieceVocabulary, to which an object of this class is equal.

  Attributes:
    sentencepiece_model_file: the path of the file, on a disk or in a bucket.
  """

  def __init__(self, sentencepiece_model_file: str, extra_ids: int = 0):
    """Creates the vocabulary.

    Args:
      sentencepiece_model_file: the path of the file.
      extra_ids: the number of sentinels behind the pieces, the last one first.
    """
    self.sentencepiece_model_file = self.path = sentencepiece_model_file
    self.extra_ids = extra_ids

  @property
  def tokenizer(self) -> Processor:
    """The model with its sentinels."""
    return _load(self.sentencepiece_model_file, self.extra_ids)

  @property
  def eos_id(self) -> int:
    """The end of sequence; -1 where the model has none."""
    return self.tokenizer.eos_id()

  @property
  def end_ids(self) -> tuple[int, ...]:
    """The end of sequence, alone."""
    return (self.eos_id,)

  @property
  def suffix(self) -> tuple[int, ...]:
    """The end of sequence, behind each input."""
    return (self.eos_id,)

  def __eq__(self, other: object) -> bool:
    """Returns whether the other has the same model and sentinels, seqio's or not."""
    return isinstance(other, _kinds()) and _identity(self) == _identity(other)

  def __hash__(self) -> int:
    return hash(_identity(self))

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):  # Python asks for many that no vocabulary has.
      raise AttributeError(name)
    return getattr(self._of_seqio, name)

  @property
  def _of_seqio(self) -> seqio.SentencePieceVocabulary:
    return _seqio_vocabulary(self.sentencepiece_model_file, self.extra_ids)

  # seqio's own operations, which run without Python.

  def encode_tf(self, text):
    return self._of_seqio.encode_tf(text)

  def decode_tf(self, tokens):
    return self._of_seqio.decode_tf(tokens)


class FolderPieces(_SentencePieces):
  """A folder's SentencePiece model and the tokens that the folder adds.

  The text between two added tokens is cut by SentencePiece as a text of its own, as in
  transformers.
  """

  def __init__(
    self,
    file: str,
    *,
    path: str,
    added: Sequence[AddedToken],
    end_ids: tuple[int, ...],
    hidden: Collection[int] = (),
    begins: bool = False,
    ends: bool = True,
  ):
    """Creates the vocabulary.

    Args:
      file: the SentencePiece model.
      path: the folder.
      added: tokens beside its pieces, or in place of some, sentinels among them.
      end_ids: the tokens that end an output; empty for the model's own.
      hidden: tokens that are no text, beside the model's control pieces.
      begins: whether inputs have the beginning of sequence in front of them, as
        Gemma's.
      ends: whether inputs have the end of sequence behind them, as T5's.

    Raises:
      ValueError: where inputs are to begin with a token that the model lacks.
    """
    self.path, self.tokenizer = path, _load(file, 0)
    model = self.tokenizer.serialized_model_proto()
    self._added = AddedTokens(tuple(added), _normalizer(model))
    eos_id = self.tokenizer.eos_id()
    self.eos_id = end_ids[0] if eos_id < 0 and end_ids else eos_id
    self.end_ids = end_ids or (eos_id,)
    self.hidden = frozenset((*hidden, *self.end_ids))
    begin = self.tokenizer.bos_id()
    if begins and begin < 0:
      raise ValueError(
        f"{path}: add_bos_token is true, and {file} has no beginning of sequence. "
        "Expected a model that has one. Correct tokenizer_config.json."
      )
    self.prefix = (begin,) if begins else ()
    self.suffix = (self.eos_id,) if ends and self.eos_id >= 0 else ()

  @property
  def vocab_size(self) -> int:
    return max([self.tokenizer.vocab_size() - 1, *self._added.by_id]) + 1

  def encode(self, text: str) -> list[int]:
    tokens = []
    for part in self._added.split(text):
      tokens += [part] if isinstance(part, int) else self.tokenizer.encode(part)
    return tokens

  def piece(self, token: int) -> str:
    return self._added.by_id.get(token) or super().piece(token)

  def _text(self, tokens: Sequence[int]) -> str:
    return "".join(self._texts(tokens))

  def _texts(self, tokens: Sequence[int]) -> Iterator[str]:
    """Yields the texts of added tokens, and of the runs of pieces between them."""
    run, is_first = [], True
    for token in (*tokens, None):
      if token is not None and token not in self._added.by_id:
        run.append(token)
        continue
      if run:
        # SentencePiece drops the space of a text's first piece.
        begins = self.piece(run[0]).startswith(SPACE)
        yield (" " if begins and not is_first else "") + super()._text(run)
      run, is_first = [], False
      if token is not None:
        yield self._added.by_id[token]


def has_sentinels(file: str) -> bool:
  """Returns whether a SentencePiece model has sentinels among its own pieces, as mT5's.

  Args:
    file: the path of the model.
  """
  tokenizer = _load(file, 0)
  return not tokenizer.is_unknown(tokenizer.piece_to_id(f"{SPACE}<extra_id_0>"))


def _kinds() -> tuple[type, ...]:
  found = sys.modules.get("seqio")
  of_seqio = (found.SentencePieceVocabulary,) if found else ()
  return (SentencePieceVocabulary, *of_seqio)


def _identity(vocabulary: Any) -> tuple[str, int]:
  return vocabulary.sentencepiece_model_file, vocabulary.extra_ids


@functools.lru_cache(maxsize=16)
def _load(path: str, extra_ids: int) -> Processor:
  """Returns the processor of a file.

  Raises:
    OSError: where the file can't be read.
    RuntimeError: where the file is no SentencePiece model.
  """
  model = read_bytes(str(path))
  if extra_ids:
    parsed = proto.ModelProto.FromString(model)
    for number in reversed(range(extra_ids)):
      piece = f"{SPACE}<extra_id_{number}>"
      parsed.pieces.add(piece=piece, score=0.0, type=_SENTINEL)
    model = parsed.SerializeToString()
  return Processor(model_proto=model)


@functools.lru_cache(maxsize=4)
def _of_parts(model: bytes) -> Processor:
  """Returns a model that keeps the spaces at a text's beginning and end."""
  found = proto.ModelProto.FromString(model)
  found.normalizer_spec.add_dummy_prefix = False
  found.normalizer_spec.remove_extra_whitespaces = False
  return Processor(model_proto=found.SerializeToString())


def _normalizer(model: bytes) -> Callable[[str], str]:
  """Returns the function that normalises a text's characters and keeps all spaces."""
  made = sentencepiece.SentencePieceNormalizer(
    model_proto=model,
    add_dummy_prefix=False,
    escape_whitespaces=False,
    remove_extra_whitespaces=False,
  )
  return made.normalize


@functools.cache
def _seqio_vocabulary(path: str, extra_ids: int) -> seqio.SentencePieceVocabulary:
  return seqio.SentencePieceVocabulary(path, extra_ids=extra_ids)
