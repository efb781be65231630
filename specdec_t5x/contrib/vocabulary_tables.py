"""Maps the tokens of a target's vocabulary to those of a draft's vocabulary."""

import functools
from typing import Any

import numpy as np

from specdec_t5x.contrib.shared_tokens import SharedTokens
from specdec_t5x.vocabularies.base import SPACE, Vocabulary
from specdec_t5x.vocabularies.frames import end_ids_of
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary

# The most pieces of a token. Further pieces are dropped.
_MOST_PIECES = 8


def between(target: Vocabulary, draft: Vocabulary) -> SharedTokens:
  """Returns the tables from a target's tokens to a draft's tokens.

  Tokens of the same text are shared, and so are the EOS tokens.

  Raises:
    ValueError: if no token is shared, or the draft's vocabulary has no EOS.
  """
  names = target.names()
  draft_ids = {name: token for token, name in enumerate(draft.names()) if name}
  ids = np.array([draft_ids.get(name, -1) for name in names], np.int32)
  if (ids >= 0).any():
    is_named = [token for token in target.end_ids if token < len(names)]
    ids[is_named] = end_ids_of(draft)[0] if draft.eos_id is None else draft.eos_id
  pieces = np.zeros((len(names), _MOST_PIECES), np.int32)
  pieces[:, 0] = np.maximum(ids, 0)
  for token, name in enumerate(names):
    if name and ids[token] < 0:
      token_pieces = draft.encode_part(name.replace(SPACE, " "))[:_MOST_PIECES]
      pieces[token, : len(token_pieces)] = token_pieces
  return SharedTokens(ids, pieces[:, : max(1, (pieces > 0).sum(axis=1).max())])


def shared_tokens(target: Any, draft: str) -> SharedTokens:
  """Returns the tables of two vocabularies, as a gin file names them.

  Args:
    target: the target's vocabulary.
    draft: the path of the draft's SentencePiece model, or of a Hugging Face folder.

  Raises:
    ValueError: if `draft` has no vocabulary, or no token is shared.
  """
  if not isinstance(target, Vocabulary):
    target = SentencePieceVocabulary(target.sentencepiece_model_file, target.extra_ids)
  return between(target, open_vocabulary(draft))


@functools.lru_cache(maxsize=4)
def of_files(target: str, draft: str) -> SharedTokens:
  """Returns the tables of the vocabularies at two paths."""
  return between(open_vocabulary(target), open_vocabulary(draft))
