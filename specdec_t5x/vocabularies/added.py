"""Tokens that a folder adds to a vocabulary, and texts split at added tokens."""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from specdec_t5x.core.checks import is_whole

_SPACES = r"\s*"
# Token ids in a text, and the texts between token ids.
Parts = Iterator[int | str]


@dataclasses.dataclass(frozen=True)
class AddedToken:
  """A token that is searched for in a text before the text is cut into pieces.

  Source: Hugging Face tokenizers, AddedToken.

  Attributes:
    content: the token's text.
    id: the token.
    lstrip: whether the token takes the spaces in front of it.
    rstrip: whether the token takes the spaces behind it.
    normalized: whether the token is searched for in the normalised text.
    single_word: whether the token is found only where no letter, digit or underscore
      is next to it.
  """

  content: str
  id: int
  lstrip: bool = False
  rstrip: bool = False
  normalized: bool = True
  single_word: bool = False

  def pattern(self, content: str) -> str:
    """Returns the regular expression of the token, written as `content`."""
    word = re.escape(content)
    if self.single_word:
      word = rf"(?<!\w){word}(?!\w)"
    before = _SPACES if self.lstrip else ""
    after = _SPACES if self.rstrip else ""
    return before + word + after


@dataclasses.dataclass(frozen=True)
class AddedTokens:
  """Splits texts at added tokens, and writes added tokens.

  Attributes:
    tokens: the added tokens.
    normalize: function that normalises a text like the vocabulary.
  """

  tokens: Sequence[AddedToken]
  normalize: Callable[[str], str]

  @functools.cached_property
  def by_id(self) -> Mapping[int, str]:
    """The text of each added token."""
    return {token.id: token.content for token in self.tokens}

  @functools.cached_property
  def _raw(self) -> "_Splitter":
    tokens = [token for token in self.tokens if not token.normalized]
    return _Splitter([(token.content, token) for token in tokens])

  @functools.cached_property
  def _normalized(self) -> "_Splitter":
    tokens = [token for token in self.tokens if token.normalized]
    return _Splitter([(self.normalize(token.content), token) for token in tokens])

  def split(self, text: str) -> Parts:
    """Yields the tokens in a text, and the texts between tokens, in order.

    Tokens with normalized=False are found first. Tokens with normalized=True are then
    found in the normalised texts between.
    """
    for part in self._raw.split(text):
      if isinstance(part, int) or not self._normalized.tokens:
        yield part
      else:
        yield from self._normalized.split(self.normalize(part))


class _Splitter:
  """Finds the leftmost token in a text, and the longest of tokens at the same place."""

  def __init__(self, tokens: Sequence[tuple[str, AddedToken]]):
    self.tokens = sorted(
      ((content, token) for content, token in tokens if content),
      key=lambda pair: -len(pair[0]),
    )
    groups = [f"({token.pattern(content)})" for content, token in self.tokens]
    self._pattern = re.compile("|".join(groups)) if groups else None

  def split(self, text: str) -> Parts:
    place = 0
    for match in self._pattern.finditer(text) if self._pattern else ():
      if match.start() > place:
        yield text[place : match.start()]
      yield self.tokens[match.lastindex - 1][1].id
      place = match.end()
    if place < len(text):
      yield text[place:]


def sentinel(number: int, token: int) -> AddedToken:
  """Returns the sentinel <extra_id_`number`>."""
  content = f"<extra_id_{number}>"
  return AddedToken(content, token, normalized=False)


def from_json(where: str, found: Any) -> AddedToken:
  """Returns the token that a JSON object describes.

  Args:
    where: path of the file, for messages.
    found: object with 'content' and 'id', and flags.

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
  settings.setdefault("normalized", not found.get("special", False))
  return AddedToken(found["content"], found["id"], **settings)
