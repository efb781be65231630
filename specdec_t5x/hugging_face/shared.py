"""Which tokens two vocabularies share, and the pieces of those that they do not."""

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto

from specdec_t5x.core.shared_tokens import SharedTokens
from specdec_t5x.hugging_face.vocabulary import Bytes, Processor

# Of a token's pieces; the few tokens that have more lack their ends.
_MOST_PIECES = 8
_SPACE = "▁"


def shared_tokens(target: Processor, draft: Processor) -> SharedTokens:
  """Returns the tables of a target's tokens in a draft's.

  Tokens are shared that are the same string, a space being SentencePiece's sign for it,
  and the ends of sequence.

  Raises:
    ValueError: where none is shared.
  """
  names, encode = _names(target), _encoder(draft)
  of_draft = {name: token for token, name in enumerate(_names(draft)) if name}
  ids = np.array([of_draft.get(name, -1) for name in names], np.int32)
  if (ids >= 0).any():
    ids[target.eos_id()] = draft.eos_id()
  pieces = np.zeros((len(names), _MOST_PIECES), np.int32)
  pieces[:, 0] = np.maximum(ids, 0)
  for token, name in enumerate(names):
    if name and ids[token] < 0:
      found = encode(name.replace(_SPACE, " "))[:_MOST_PIECES]
      pieces[token, : len(found)] = found
  return SharedTokens(ids, pieces[:, : max(1, (pieces > 0).sum(axis=1).max())])


def _names(processor: Processor) -> list[str | None]:
  """Returns what each token stands for; None of those that are no text."""
  if isinstance(processor, Bytes):
    special = processor.vocab_size() - 256
    return [None] * special + [_name_of_byte(byte) for byte in range(256)]
  is_none = lambda x: any((processor.is_control(x), processor.is_unknown(x)))
  every = range(processor.vocab_size())
  return [None if is_none(x) else processor.id_to_piece(x) for x in every]


def _name_of_byte(byte: int) -> str:
  name = chr(byte).replace(" ", _SPACE)
  return name if byte < 128 else f"<0x{byte:02X}>"


def _encoder(processor: Processor):
  """Returns what encodes a part of a text, without a space in front of it."""
  if not isinstance(processor, sentencepiece.SentencePieceProcessor):
    return processor.encode
  model = proto.ModelProto.FromString(processor.serialized_model_proto())
  model.normalizer_spec.add_dummy_prefix = False
  model.normalizer_spec.remove_extra_whitespaces = False
  parts = sentencepiece.SentencePieceProcessor()
  parts.LoadFromSerializedProto(model.SerializeToString())
  return parts.encode
