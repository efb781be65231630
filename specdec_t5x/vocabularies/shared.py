"""The tokens that two vocabularies share, and the draft's pieces of all others."""

import numpy as np

from specdec_t5x.core.shared_tokens import SharedTokens
from specdec_t5x.vocabularies.base import SPACE, Vocabulary
from specdec_t5x.vocabularies.frames import end_ids_of

# The most pieces of a token. The text of a longer token is cut.
_MOST_PIECES = 8


def shared_tokens(target: Vocabulary, draft: Vocabulary) -> SharedTokens:
  """Returns the tables from a target's tokens to a draft's tokens.

  Tokens of the same text are shared, and so are the ends of sequence.

  Raises:
    ValueError: where none is shared, or the draft's vocabulary has no end.
  """
  names = target.names()
  of_draft = {name: token for token, name in enumerate(draft.names()) if name}
  ids = np.array([of_draft.get(name, -1) for name in names], np.int32)
  if (ids >= 0).any():
    is_named = [token for token in target.end_ids if token < len(names)]
    ids[is_named] = end_ids_of(draft)[0] if draft.eos_id is None else draft.eos_id
  pieces = np.zeros((len(names), _MOST_PIECES), np.int32)
  pieces[:, 0] = np.maximum(ids, 0)
  for token, name in enumerate(names):
    if name and ids[token] < 0:
      found = draft.encode_part(name.replace(SPACE, " "))[:_MOST_PIECES]
      pieces[token, : len(found)] = found
  return SharedTokens(ids, pieces[:, : max(1, (pieces > 0).sum(axis=1).max())])
