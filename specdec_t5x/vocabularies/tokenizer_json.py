"""A tokenizer.json, read by the `tokenizers` library: unigram, BPE or WordPiece."""

import functools
import itertools
import pathlib
from collections.abc import Collection, Sequence

import tokenizers

from specdec_t5x.hugging_face import lfs
from specdec_t5x.vocabularies.base import Vocabulary

_PROBE = "a"
_PROBES = 100  # Tokens to try as probes if the vocabulary has no "a".


class TokenizerJson(Vocabulary):
  """The vocabulary of a tokenizer.json.

  Texts and tokens are the same as in `tokenizers`, but texts omit `hidden` tokens.
  """

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    *,
    path: str,
    eos_id: int | None,
    end_ids: tuple[int, ...],
    hidden: Collection[int],
    ends: bool = True,
  ):
    """Creates the vocabulary.

    Args:
      tokenizer: the tokenizer of the file (`load`).
      path: path of the folder or of the file.
      eos_id: end of sequence, or None.
      end_ids: tokens that end an output.
      hidden: tokens without text.
      ends: whether inputs end with the end of sequence, if the file has no
        post-processor.
    """
    self.path = path
    self._tokenizer = tokenizer
    self.eos_id = eos_id
    self.end_ids = end_ids
    self.hidden = frozenset((*hidden, *end_ids))
    self.prefix, self.suffix = self._frame(ends)

  @functools.cached_property
  def vocab_size(self) -> int:
    return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

  def encode(self, text: str) -> list[int]:
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def piece(self, token: int) -> str:
    return self._tokenizer.id_to_token(token) or ""

  def _text(self, tokens: Sequence[int]) -> str:
    return self._tokenizer.decode(tokens, skip_special_tokens=False)

  def _frame(self, ends: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the tokens that the file's post-processor puts around a text."""
    if self._tokenizer.post_processor is None:
      return (), (self.eos_id,) if ends and self.eos_id is not None else ()
    # Texts until a text has a token of the vocabulary.
    tokens = range(min(self.vocab_size, _PROBES))
    texts = (self._tokenizer.decode([token]) for token in tokens)
    for text in itertools.chain([_PROBE], texts):
      encoded = self._tokenizer.encode(text, add_special_tokens=True)
      is_text = [not is_special for is_special in encoded.special_tokens_mask]
      if True in is_text:
        start = is_text.index(True)
        end = len(is_text) - is_text[::-1].index(True)
        return tuple(encoded.ids[:start]), tuple(encoded.ids[end:])
    return (), tuple(encoded.ids)


def load(file: str | pathlib.Path) -> tokenizers.Tokenizer:
  """Returns the tokenizer of a file, without truncation and padding.

  Raises:
    ValueError: if `tokenizers` can't read the file.
  """
  lfs.check(file)
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
  except Exception as error:  # tokenizers raises plain Exceptions.
    raise ValueError(
      f"{file} is not a tokenizer of the tokenizers library ({error}). Copy the file "
      "again, or write the file again with transformers: "
      "tokenizer.save_pretrained(DIR)."
    ) from error
  tokenizer.no_truncation()
  tokenizer.no_padding()
  return tokenizer
