"""Opening a vocabulary of any kind by a path."""

import os
import pathlib

from specdec_t5x.vocabularies import folder
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.sentencepieces import (
  SentencePieceVocabulary,
  has_sentinels,
)

_SENTINELS = 100  # T5's, behind the pieces of a SentencePiece file.


def open_vocabulary(
  path: str | os.PathLike,
  extra_ids: int | None = None,
  vocab_size: int | None = None,
) -> Vocabulary:
  """Returns the vocabulary at a path.

  Args:
    path: path of a SentencePiece model, a tokenizer.json or a Hugging Face folder. ~ is
      the user's home.
    extra_ids: number of sentinels after the pieces of a SentencePiece model. For a
      folder, None is the folder's number. For a file, None is T5's 100 if the network
      has at least 100 more rows than the model has pieces, else 0.
    vocab_size: number of rows of the network; None leaves a file without sentinels.

  Raises:
    ValueError: if there is no vocabulary, or a file of the vocabulary is damaged.
  """
  path = os.path.expanduser(path)
  if os.path.isdir(path):
    return folder.open_folder(path, extra_ids)
  if path.endswith(".json"):
    file = pathlib.Path(path)
    if file.name != folder.TOKENIZER or not file.is_file():
      raise ValueError(
        f"The vocabulary {path} can't be read: expected a file {folder.TOKENIZER}, a "
        "SentencePiece model, or a folder of a tokenizer."
      )
    return folder.open_folder(str(file.parent), extra_ids)
  try:
    pieces = SentencePieceVocabulary(path)
    size = pieces.vocab_size
    if has_sentinels(path):
      extra_ids = 0
  except (RuntimeError, OSError) as error:
    raise ValueError(
      f"vocabulary={path!r} is not a SentencePiece model: {error}. Give the model's "
      "own vocabulary."
    ) from error
  if extra_ids is None:
    has_room = vocab_size is not None and size + _SENTINELS <= vocab_size
    extra_ids = _SENTINELS if has_room else 0
  return SentencePieceVocabulary(path, extra_ids) if extra_ids else pieces
