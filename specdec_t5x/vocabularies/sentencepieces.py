"""SentencePiece models: a file in seqio's reading, and a folder with added tokens."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Sequence
from typing import Any

import sentencepiece
from etils import epy
from sentencepiece import sentencepiece_model_pb2 as proto

from specdec_t5x.vocabularies.added import AddedToken, AddedTokens, sentinel
from specdec_t5x.vocabularies.base import SPACE, Vocabulary
from specdec_t5x.vocabularies.reading import read_bytes

with epy.lazy_imports():
  import seqio

_MOST_SENTINELS = 300  # UL2 has 300; T5 has 100.
_SENTINEL = proto.ModelProto.SentencePiece.USER_DEFINED
Processor = sentencepiece.SentencePieceProcessor


class _SentencePieces(Vocabulary):
  """The base class of both kinds; `tokenizer` is the SentencePiece processor."""

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

  def piece(self, token: int) -> str:
    return self.tokenizer.id_to_piece(token) if self._is_piece(token) else ""

  def _text(self, tokens: Sequence[int]) -> str:
    pieces = [token if self._is_piece(token) else self.unk_id for token in tokens]
    return self.tokenizer.decode(pieces)

  def _is_piece(self, token: int) -> bool:
    return token < self.tokenizer.vocab_size()


class SentencePieceVocabulary(_SentencePieces):
  """A SentencePiece file with sentinels after the pieces, as in seqio.

  The file is read at the first text or token. Tokens and texts are the same as for
  seqio.SentencePieceVocabulary, and objects of both classes compare equal. A file that
  is written again is another vocabulary for objects that are created later.

  Attributes:
    sentencepiece_model_file: path of the file, on a disk or in a bucket.
    version: size, time and inode of the file; None for a bucket or a missing file.
  """

  def __init__(self, sentencepiece_model_file: str, extra_ids: int = 0):
    """Creates the vocabulary.

    Args:
      sentencepiece_model_file: path of the file.
      extra_ids: number of sentinels after the pieces, the last sentinel first.
    """
    self.sentencepiece_model_file = sentencepiece_model_file
    self.path = sentencepiece_model_file
    self.extra_ids = extra_ids
    self.version = _version(sentencepiece_model_file)

  @property
  def tokenizer(self) -> Processor:
    """The model with sentinels."""
    return _load(self.sentencepiece_model_file, self.extra_ids, self.version)

  @property
  def eos_id(self) -> int:
    """The end of sequence, or -1."""
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
    """Returns whether a vocabulary, or seqio's, has the same model and sentinels."""
    # seqio's class is equal only if seqio has been imported.
    theirs = getattr(sys.modules.get("seqio"), "SentencePieceVocabulary", type(self))
    is_same_kind = isinstance(other, type(self) | theirs)
    if not is_same_kind or _identity(self) != _identity(other):
      return False
    return self.version == getattr(other, "version", self.version)

  def __hash__(self) -> int:
    return hash(_identity(self))

  def __getattr__(self, name: str) -> Any:
    if name.startswith("__"):  # Python looks up special methods that seqio lacks.
      raise AttributeError(name)
    return getattr(self._of_seqio, name)

  @property
  def _of_seqio(self) -> seqio.SentencePieceVocabulary:
    path = self.sentencepiece_model_file
    return _seqio_vocabulary(path, self.extra_ids, self.version)

  # Operations of seqio, which run without Python.

  def encode_tf(self, text):
    return self._of_seqio.encode_tf(text)

  def decode_tf(self, tokens):
    return self._of_seqio.decode_tf(tokens)


class FolderPieces(_SentencePieces):
  """A folder's SentencePiece model and the tokens that the folder adds.

  SentencePiece encodes the text between two added tokens as a separate text, as in
  transformers.
  """

  def __init__(
    self,
    file: str,
    *,
    path: str,
    added: Sequence[AddedToken],
    end_ids: tuple[int, ...],
    begins: bool = False,
    ends: bool = True,
  ):
    """Creates the vocabulary.

    Args:
      file: path of the SentencePiece model.
      path: path of the folder.
      added: tokens beside the pieces or in place of pieces, sentinels included.
      end_ids: tokens that end an output; empty for the model's end of sequence.
      begins: whether inputs start with the beginning of sequence, as in Gemma.
      ends: whether inputs end with the end of sequence, as in T5.

    Raises:
      ValueError: if `begins` is set and the model has no beginning of sequence.
    """
    self.path = path
    self.tokenizer = _load(file, 0, _version(file))
    model = self.tokenizer.serialized_model_proto()
    # Normalises a text's characters, and keeps all spaces.
    normalizer = sentencepiece.SentencePieceNormalizer(
      model_proto=model,
      add_dummy_prefix=False,
      escape_whitespaces=False,
      remove_extra_whitespaces=False,
    )
    self._added = AddedTokens(tuple(added), normalizer.normalize)
    eos_id = self.tokenizer.eos_id()
    self.eos_id = end_ids[0] if eos_id < 0 and end_ids else eos_id
    self.end_ids = end_ids or (eos_id,)
    self.hidden = frozenset(self.end_ids)
    begin = self.tokenizer.bos_id()
    if begins and begin < 0:
      raise ValueError(
        f"{path}: add_bos_token is true, but {file} has no beginning of sequence. "
        "Expected a model with a beginning of sequence. Correct tokenizer_config.json."
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
    texts = []
    for is_added, group in itertools.groupby(tokens, self._added.by_id.__contains__):
      run = list(group)
      if is_added:
        texts += [self._added.by_id[token] for token in run]
      else:
        # SentencePiece drops the space of a text's first piece.
        has_space = texts and self.piece(run[0]).startswith(SPACE)
        texts.append((" " if has_space else "") + super()._text(run))
    return "".join(texts)


def has_sentinels(file: str) -> bool:
  """Returns whether a SentencePiece model has sentinels among the pieces, as in mT5."""
  return bool(_sentinels_among(file, SPACE) or sentinels_of(file))


def sentinels_of(file: str) -> list[AddedToken]:
  """Returns the sentinels among a model's pieces that have no mark of a space.

  transformers searches texts for these pieces, with the pieces' ids.
  """
  return [sentinel(*pair) for pair in _sentinels_among(file, "")]


def _sentinels_among(file: str, before: str) -> list[tuple[int, int]]:
  """Returns the number and the id of each sentinel among a model's pieces."""
  tokenizer = _load(file, 0, _version(file))
  numbers = range(_MOST_SENTINELS)
  ids = tokenizer.piece_to_id([f"{before}<extra_id_{number}>" for number in numbers])
  pairs = zip(numbers, ids, strict=True)
  return [(number, token) for number, token in pairs if not tokenizer.is_unknown(token)]


def _identity(vocabulary: Any) -> tuple[str, int]:
  return vocabulary.sentencepiece_model_file, vocabulary.extra_ids


def _version(path: str) -> tuple[int, ...] | None:
  try:
    stat = os.stat(path)
  except (OSError, TypeError, ValueError):  # Missing, in a bucket, or not a path.
    return None
  return stat.st_size, stat.st_mtime_ns, stat.st_ino


@functools.lru_cache(maxsize=16)
def _load(path: str, extra_ids: int, version: tuple[int, ...] | None) -> Processor:
  """Returns the processor of a file; a new version of the file is read again.

  Raises:
    OSError: if the file can't be read.
    RuntimeError: if the file is not a SentencePiece model.
  """
  del version
  model = read_bytes(str(path))
  if not model:
    raise RuntimeError("the file is empty")
  if extra_ids:
    parsed = proto.ModelProto.FromString(model)
    for number in reversed(range(extra_ids)):
      piece = f"{SPACE}<extra_id_{number}>"
      parsed.pieces.add(piece=piece, score=0.0, type=_SENTINEL)
    model = parsed.SerializeToString()
  return Processor(model_proto=model)


@functools.cache
def _seqio_vocabulary(path: str, extra_ids: int, version: tuple[int, ...] | None):
  processor = _load(path, extra_ids, version)

  class Loaded(seqio.SentencePieceVocabulary):
    # seqio would read each path once in a process.
    tokenizer = processor
    sp_model = processor.serialized_model_proto()

  return Loaded(path, extra_ids=extra_ids)
