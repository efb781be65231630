"""ByT5's vocabulary: the bytes of a text."""

from collections.abc import Sequence

from specdec_t5x.vocabularies.added import AddedToken, AddedTokens, sentinel
from specdec_t5x.vocabularies.base import Vocabulary

_BYTES_FROM = 3  # Padding, the end of sequence and the unknown token are before them.
_PAD, _EOS = 0, 1


class Bytes(Vocabulary):
  """ByT5's vocabulary: a byte's token is the byte plus three.

  >>> Bytes().encode("é"), Bytes().decode([198, 172, 1])
  ([198, 172], 'é')

  Source: transformers, models/byt5.
  """

  def __init__(
    self,
    path: str = "",
    added: Sequence[AddedToken] = (),
    end_ids: tuple[int, ...] = (_EOS,),
  ):
    """Creates the vocabulary.

    Args:
      path: folder of the vocabulary.
      added: tokens after the bytes, sentinels included.
      end_ids: tokens that end an output.
    """
    self.path = path
    self.end_ids = end_ids
    self.eos_id = _EOS
    self.suffix = (_EOS,)
    self.hidden = frozenset((_PAD, _EOS))
    self._added = AddedTokens(tuple(added), str)

  @property
  def vocab_size(self) -> int:
    return max([_BYTES_FROM + 255, *self._added.by_id]) + 1

  def encode(self, text: str) -> list[int]:
    tokens = []
    for part in self._added.split(text):
      if isinstance(part, int):
        tokens.append(part)
      else:
        tokens += [_BYTES_FROM + byte for byte in part.encode("utf-8")]
    return tokens

  def piece(self, token: int) -> str:
    return self._text([token])

  def _text(self, tokens: Sequence[int]) -> str:
    data = b""
    for token in tokens:
      if 0 <= token - _BYTES_FROM < 256:
        data += bytes([token - _BYTES_FROM])
      else:
        data += self._added.by_id.get(token, "").encode("utf-8")
    return data.decode("utf-8", errors="ignore")


def sentinels(count: int) -> list[AddedToken]:
  """Returns ByT5's sentinels: <extra_id_N> is token 259 + N."""
  return [sentinel(number, _BYTES_FROM + 256 + number) for number in range(count)]
