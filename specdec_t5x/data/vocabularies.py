"""Vocabularies as gin files name them, and a check that T5X can use one."""

from __future__ import annotations

import os
import sys

from etils import epy
from google.protobuf import message

from specdec_t5x import moved
from specdec_t5x.core.checks import is_whole
from specdec_t5x.data.hints import how_to_make
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.vocabularies.reading import read_bytes
from specdec_t5x.vocabularies.sentencepieces import (
  SentencePieceVocabulary,
  has_sentinels,
)

with epy.lazy_imports():
  import seqio

DEFAULT_T5_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
# T5's. Others number end of sequence and unknown otherwise, but 0 is no token of text.
_T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2}


def t5_vocabulary(
  path: str = DEFAULT_T5_VOCABULARY, extra_ids: int = 100
) -> seqio.SentencePieceVocabulary | SentencePieceVocabulary:
  """Returns T5's vocabulary, or another SentencePiece one; nothing is read yet.

  Args:
    path: the SentencePiece model, on a disk or in a bucket. It is read when the
      first text is encoded, so naming a bucket here needs no network.
    extra_ids: sentinel tokens added after the pieces; T5's checkpoints have 100.

  Returns:
    A vocabulary that loads itself when used.
  """
  if is_waiting_for_seqio():
    return SentencePieceVocabulary(path, extra_ids)
  return seqio.SentencePieceVocabulary(path, extra_ids=extra_ids)


def is_waiting_for_seqio() -> bool:
  """Returns whether `t5x.infer` runs and may yet do without seqio."""
  runtime = sys.modules.get("t5x.plain_tasks")
  return runtime is not None and runtime.is_deferring()


def sentencepiece_vocabulary(
  path: str, extra_ids: int | None
) -> Vocabulary | seqio.SentencePieceVocabulary:
  """Returns a vocabulary that was seen to load.

  Args:
    path: a SentencePiece model, on a disk or in a bucket; a tokenizer.json; or a
      Hugging Face folder.
    extra_ids: sentinel tokens added after the pieces of a SentencePiece model, where
      the model has none itself; None, of a folder: as it says.

  Raises:
    ValueError: as `check_vocabulary`; or where the folder has no vocabulary.
  """
  if isinstance(path, str) and (os.path.isdir(path) or path.endswith(".json")):
    return open_vocabulary(path, extra_ids)
  check_vocabulary(SentencePieceVocabulary(path, extra_ids))
  return t5_vocabulary(path, 0 if has_sentinels(path) else extra_ids)


def check_vocabulary(
  vocabulary: SentencePieceVocabulary | seqio.SentencePieceVocabulary,
) -> None:
  """Raises a ValueError where the vocabulary can't be loaded or is not T5-like.

  Args:
    vocabulary: the vocabulary of a SentencePiece model.

  Raises:
    ValueError: the file is missing or unreachable, is not a SentencePiece model, or
      numbers padding, end of sequence and unknown other than 0, 1 and 2.
  """
  path, extra_ids = vocabulary.sentencepiece_model_file, vocabulary.extra_ids
  if not isinstance(path, str) or not is_whole(extra_ids, 0):
    raise ValueError(
      "VOCABULARY_PATH must be the path of a SentencePiece model and "
      f"VOCABULARY_EXTRA_IDS a whole number of at least 0, got {path!r} and "
      f"{extra_ids!r}."
    )
  try:
    read_bytes(path)
  except OSError as error:
    raise ValueError(
      f"The vocabulary {path} can't be read: {error}. Expected a SentencePiece model "
      "(T5's own is sentencepiece.model or spiece.model); give a path to a copy on "
      f"this machine where buckets are out of reach.{how_to_make(path)}"
    ) from error
  try:
    # Read without sentinels, which a model may have among its own pieces.
    tokenizer = SentencePieceVocabulary(path).tokenizer
  except (message.DecodeError, RuntimeError) as error:
    raise ValueError(
      f"{path} is not a SentencePiece model: {error}. Expected the .model file that "
      "SentencePiece training writes, not its .vocab text."
    ) from error
  found = {name: getattr(tokenizer, name)() for name in _T5_IDS}
  if 0 not in (found["pad_id"], found["unk_id"]) or found["eos_id"] < 1:
    raise ValueError(
      f"{path} numbers its special tokens {found}, expected {_T5_IDS}, or others with "
      "0 as padding or unknown: 0 fills rows up. Train the vocabulary with --pad_id=0 "
      "--eos_id=1 --unk_id=2 --bos_id=-1."
    )


__getattr__ = moved.names_of(__name__)
