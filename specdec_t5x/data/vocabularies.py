"""Vocabularies for gin files."""

import os

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary

# T5's vocabulary. The bucket is read for the first text, so a task needs no network.
T5_VOCABULARY = SentencePieceVocabulary(
  "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model", extra_ids=100
)
# T5's ids. Other vocabularies may have other ids of EOS and unknown, but 0 must not be
# a token of text.
_T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2}


def sentencepiece_vocabulary(path: str, extra_ids: int | None) -> Vocabulary:
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
  is_path = isinstance(path, str)
  is_folder = is_path and (os.path.isdir(path) or path.endswith(".json"))
  if not is_path or not (is_folder or is_whole(extra_ids, 0)):
    raise ValueError(
      "VOCABULARY_PATH must be the path of a SentencePiece model and "
      f"VOCABULARY_EXTRA_IDS a whole number of at least 0, got {path!r} and "
      f"{extra_ids!r}."
    )
  vocabulary = open_vocabulary(path, extra_ids)
  if isinstance(vocabulary, SentencePieceVocabulary):
    ids = {name: getattr(vocabulary.tokenizer, name)() for name in _T5_IDS}
    if 0 not in (ids["pad_id"], ids["unk_id"]) or ids["eos_id"] < 1:
      raise ValueError(
        f"{path} numbers the special tokens {ids}, expected {_T5_IDS}, or other ids "
        "with 0 as padding or unknown, because 0 is the padding of rows. Train the "
        "vocabulary with --pad_id=0 --eos_id=1 --unk_id=2 --bos_id=-1."
      )
  return vocabulary
