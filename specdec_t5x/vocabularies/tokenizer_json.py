"""A tokenizer.json, read by the `tokenizers` library: unigram, BPE or WordPiece."""

import functools
import json
import pathlib
from collections.abc import Collection, Iterator, Sequence

import tokenizers

from specdec_t5x.hugging_face import lfs
from specdec_t5x.vocabularies.base import SPACE, Vocabulary

_PROBE = "a"
_PROBES = 100  # Tokens to try as probes if the vocabulary has no "a".


class TokenizerJson(Vocabulary):
  """The vocabulary of a tokenizer.json.

  Texts and tokens are the same as in `tokenizers`, but texts omit `hidden` tokens.
  """

  def __init__(
    self,
    file: str,
    *,
    path: str,
    eos_id: int | None,
    end_ids: tuple[int, ...],
    hidden: Collection[int],
    ends: bool = True,
  ):
    """Reads the file.

    Args:
      file: path of the tokenizer.json.
      path: path of the folder or of the file.
      eos_id: end of sequence, or None.
      end_ids: tokens that end an output.
      hidden: tokens without text.
      ends: whether inputs end with the end of sequence, if the file has no
        post-processor.

    Raises:
      ValueError: if `tokenizers` can't read the file.
    """
    self.path = path
    self._file = file
    self._tokenizer = load(file)
    self.eos_id = eos_id
    self.end_ids = end_ids
    self.hidden = frozenset((*hidden, *end_ids))
    self.prefix, self.suffix = self._frame(ends)

  @functools.cached_property
  def vocab_size(self) -> int:
    return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

  def encode(self, text: str) -> list[int]:
    return self._tokenizer.encode(text, add_special_tokens=False).ids

  def encode_part(self, text: str) -> list[int]:
    return self._of_parts.encode(text, add_special_tokens=False).ids

  def piece(self, token: int) -> str:
    return self._tokenizer.id_to_token(token) or ""

  def names(self) -> list[str | None]:
    added = self._tokenizer.get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special}
    name = _naming(json.loads(self._tokenizer.to_str()))
    no_text = special | self.hidden
    pieces = [
      None if token in no_text else self._tokenizer.id_to_token(token)
      for token in range(self.vocab_size)
    ]
    # Ids of a file may have gaps.
    return [None if piece is None else name(piece) for piece in pieces]

  def _text(self, tokens: Sequence[int]) -> str:
    return self._tokenizer.decode(tokens, skip_special_tokens=False)

  def _frame(self, ends: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the tokens that the file's post-processor puts around a text."""
    if self._tokenizer.post_processor is None:
      return (), (self.eos_id,) if ends and self.eos_id is not None else ()
    for text in self._probes():
      encoded = self._tokenizer.encode(text, add_special_tokens=True)
      is_text = [not is_special for is_special in encoded.special_tokens_mask]
      if True in is_text:
        start = is_text.index(True)
        end = len(is_text) - is_text[::-1].index(True)
        return tuple(encoded.ids[:start]), tuple(encoded.ids[end:])
    return (), tuple(encoded.ids)

  def _probes(self) -> Iterator[str]:
    """Yields texts until a text has a token of the vocabulary."""
    yield _PROBE
    for token in range(min(self.vocab_size, _PROBES)):
      yield self._tokenizer.decode([token])

  @functools.cached_property
  def _of_parts(self) -> tokenizers.Tokenizer:
    """The tokenizer without an added space in front of a text."""
    settings = json.loads(self._tokenizer.to_str())
    for step in _steps(settings.get("pre_tokenizer"), "pretokenizers"):
      if step["type"] == "Metaspace":
        step["prepend_scheme"] = "never"
      if step["type"] == "ByteLevel":
        step["add_prefix_space"] = False
    for step in _steps(settings.get("normalizer"), "normalizers"):
      if step["type"] == "Prepend":
        step["prepend"] = ""
    return tokenizers.Tokenizer.from_str(json.dumps(settings))


def load(file: str | pathlib.Path) -> tokenizers.Tokenizer:
  """Returns the tokenizer of a file, without truncation and padding.

  Raises:
    ValueError: if `tokenizers` can't read the file.
  """
  lfs.check_file(file)
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


def _steps(part, name):
  """Returns the steps of a part of a tokenizer, which may be a sequence of steps."""
  if part is None:
    return []
  return part[name] if part["type"] == "Sequence" else [part]


def _naming(settings):
  """Returns the function from a token's spelling to the token's text."""
  steps = _steps(settings.get("pre_tokenizer"), "pretokenizers")
  if any(step["type"] == "ByteLevel" for step in steps):
    return _text_of_bytes
  if settings["model"].get("type") == "WordPiece":
    prefix = settings["model"]["continuing_subword_prefix"]
    return functools.partial(_text_of_word_piece, prefix=prefix)
  return str


def _text_of_word_piece(piece: str, prefix: str) -> str:
  return piece.removeprefix(prefix) if piece.startswith(prefix) else SPACE + piece


def _text_of_bytes(piece: str) -> str | None:
  """Returns the text of a byte-level piece; each character stands for a byte."""
  data = bytes(_byte_of()[character] for character in piece if character in _byte_of())
  try:
    return data.decode("utf-8").replace(" ", SPACE)
  except UnicodeDecodeError:
    return f"<0x{data[0]:02X}>" if len(data) == 1 else None


@functools.cache
def _byte_of() -> dict[str, int]:
  """Returns the byte of each character of byte-level pieces.

  A printable byte is the character with the same code. Other bytes are the characters
  from 256 on, in order.

  Source: GPT-2's encoder (Radford et al., 2019).
  """
  plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [byte for byte in range(256) if byte not in plain]
  moved = {chr(256 + place): byte for place, byte in enumerate(others)}
  return {chr(byte): byte for byte in plain} | moved
