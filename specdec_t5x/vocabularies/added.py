"""Tokens that a folder adds to a vocabulary, and the split of texts at these tokens."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec_t5x.core.knobs import is_whole

_SPACES = r"\s*"
# Token ids in a text, and the texts between token ids.
Parts = Iterator[int | str]


@dataclasses.dataclass(frozen=True)
class AddedToken:
  """A token that is searched for in a text before the text is cut into pieces.

  Source: Hugging Face tokenizers, AddedToken.
  """

  content: str
  id: int
  lstrip: bool = False  # Whether the token takes the spaces in front of it.
  rstrip: bool = False  # Whether the token takes the spaces behind it.
  # Whether the token's normalised content is searched for in the normalised text;
  # otherwise `content` is searched for in the text as the text is.
  normalized: bool = True
  # Whether the token is found only where no letter, digit or underscore is next to it.
  single_word: bool = False

  def pattern(self, content: str) -> str:
    """Returns the regular expression that finds the token, spelled as `content`.

    `content` is the token's text, normalised for a search in normalised texts.
    """
    word = re.escape(content)
    if self.single_word:
      word = rf"(?<!\w){word}(?!\w)"
    before = _SPACES if self.lstrip else ""
    after = _SPACES if self.rstrip else ""
    return before + word + after


@dataclasses.dataclass(frozen=True)
class AddedTokens:
  """Splits texts at added tokens for encoding, and has their texts for decoding."""

  tokens: Sequence[AddedToken]
  normalize: Callable[[str], str]  # Normalises a text like the vocabulary.

  @functools.cached_property
  def by_id(self) -> Mapping[int, str]:
    """The text of each added token, by id."""
    return {token.id: token.content for token in self.tokens}

  @functools.cached_property
  def _splitters(self) -> tuple["_Splitter", "_Splitter"]:
    """The splitters at tokens with normalized=False and with normalized=True."""
    raw = [(x.content, x) for x in self.tokens if not x.normalized]
    normalized = [(self.normalize(x.content), x) for x in self.tokens if x.normalized]
    return _Splitter(raw), _Splitter(normalized)

  def split(self, text: str) -> Parts:
    """Yields the ids of the added tokens in a text, and the texts between, in order.

    Tokens with normalized=False are found first. They divide the text into parts. Each
    part is then normalised, and tokens with normalized=True are found in the normalised
    part. Without such tokens, only the vocabulary normalises the parts, on encoding.
    """
    raw, normalized = self._splitters
    for part in raw.split(text):
      if isinstance(part, int) or not normalized.tokens:
        yield part
      else:
        yield from normalized.split(self.normalize(part))


class _Splitter:
  """Splits a text at tokens, each with the content to search for, from left to right.

  If several tokens match at the same place, the token with the longest content counts.
  """

  def __init__(self, tokens: Sequence[tuple[str, AddedToken]]):
    self.tokens = sorted(
      ((content, token) for content, token in tokens if content),
      key=lambda pair: -len(pair[0]),
    )
    groups = [f"({token.pattern(content)})" for content, token in self.tokens]
    self._pattern = re.compile("|".join(groups)) if groups else None

  def split(self, text: str) -> Parts:
    """Yields the ids of the tokens in a text, and the texts between, in order."""
    place = 0
    for match in self._pattern.finditer(text) if self._pattern else ():
      if match.start() > place:
        yield text[place : match.start()]
      yield self.tokens[match.lastindex - 1][1].id
      place = match.end()
    if place < len(text):
      yield text[place:]


def sentinel(number: int, token: int) -> AddedToken:
  """Returns the added token <extra_id_`number`> with the id `token`."""
  content = f"<extra_id_{number}>"
  return AddedToken(content, token, normalized=False)


def from_json(where: str, found: Any) -> AddedToken:
  """Returns the token that a JSON object describes.

  Args:
    where: path of the file, for messages.
    found: the JSON object, with 'content', 'id' and flags of `AddedToken`.

  Raises:
    ValueError: if the object lacks a field, or a field has another type.
  """
  flags = ("lstrip", "rstrip", "normalized", "single_word")
  is_token = isinstance(found, Mapping) and isinstance(found.get("content"), str)
  if not is_token or not is_whole(found.get("id"), 0):
    raise ValueError(
      f"{where}: expected added tokens with 'content' and 'id', got {found!r:.80}. "
      "Copy the file again."
    )
  settings = {name: bool(found[name]) for name in flags if name in found}
  # The default of Hugging Face's tokenizers: only special tokens are not normalised.
  settings.setdefault("normalized", not found.get("special", False))
  return AddedToken(found["content"], found["id"], **settings)
