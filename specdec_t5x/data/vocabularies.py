"""Vocabularies for gin files."""

from __future__ import annotations

import os
import sys

from etils import epy

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.vocabularies.sentencepieces import (
  SentencePieceVocabulary,
  has_sentinels,
)

with epy.lazy_imports():
  import seqio

DEFAULT_T5_VOCABULARY = "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
# T5's ids. Other vocabularies may have other ids of EOS and unknown, but 0 must not be
# a token of text.
_T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2}


def t5_vocabulary(
  path: str = DEFAULT_T5_VOCABULARY, extra_ids: int = 100
) -> seqio.SentencePieceVocabulary | SentencePieceVocabulary:
  """Returns T5's vocabulary, or another SentencePiece vocabulary, without reading it.

  Args:
    path: path of the SentencePiece model, on a disk or in a bucket. The file is read
      for the first text, so a bucket's path needs no network here.
    extra_ids: number of sentinel tokens after the pieces; T5's checkpoints have 100.

  Returns:
    A vocabulary that loads the file on first use.
  """
  if is_waiting_for_seqio():
    return SentencePieceVocabulary(path, extra_ids)
  return seqio.SentencePieceVocabulary(path, extra_ids=extra_ids)


def is_waiting_for_seqio() -> bool:
  """Returns whether `t5x.infer` runs and may not need seqio."""
  runtime = sys.modules.get("t5x.plain_tasks")
  return runtime is not None and runtime.is_deferring()


def sentencepiece_vocabulary(
  path: str, extra_ids: int | None
) -> Vocabulary | seqio.SentencePieceVocabulary:
  """Returns a vocabulary after a check that the file loads.

  Args:
    path: path of a SentencePiece model, on a disk or in a bucket; of a tokenizer.json;
      or of a Hugging Face folder.
    extra_ids: number of sentinel tokens after the pieces of a SentencePiece model, if
      the model has no sentinels; for a folder, None takes the folder's number.

  Raises:
    ValueError: if the file is missing or unreachable, or is not a SentencePiece model;
      if neither padding nor unknown has the id 0; if EOS has no id above 0; or if the
      folder has no vocabulary.
  """
  if isinstance(path, str) and (os.path.isdir(path) or path.endswith(".json")):
    return open_vocabulary(path, extra_ids)
  if not isinstance(path, str) or not is_whole(extra_ids, 0):
    raise ValueError(
      "VOCABULARY_PATH must be the path of a SentencePiece model and "
      f"VOCABULARY_EXTRA_IDS a whole number of at least 0, got {path!r} and "
      f"{extra_ids!r}."
    )
  try:
    # A model may have sentinels among the pieces, so no sentinels are added here.
    tokenizer = SentencePieceVocabulary(path).tokenizer
  except OSError as error:
    raise ValueError(
      f"The vocabulary {path} can't be read: {error}. Expected a SentencePiece model "
      "(T5's own is sentencepiece.model or spiece.model); if buckets are out of reach, "
      "give the path of a local copy."
    ) from error
  except RuntimeError as error:
    raise ValueError(
      f"{path} is not a SentencePiece model: {error}. Expected the .model file of "
      "SentencePiece training, not the .vocab text."
    ) from error
  ids = {name: getattr(tokenizer, name)() for name in _T5_IDS}
  if 0 not in (ids["pad_id"], ids["unk_id"]) or ids["eos_id"] < 1:
    raise ValueError(
      f"{path} numbers the special tokens {ids}, expected {_T5_IDS}, or other ids with "
      "0 as padding or unknown, because 0 is the padding of rows. Train the vocabulary "
      "with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1."
    )
  return t5_vocabulary(path, 0 if has_sentinels(path) else extra_ids)
