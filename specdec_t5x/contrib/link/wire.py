"""The messages: msgpack arrays of a format's name, a session's number and bytes.

The receiver checks every part before using it: lengths against the session's setup,
tokens against the vocabulary, distributions for being distributions. All replies of a
session with the same number of live rows have the same size, so neither the time that a
reply takes nor its loss depends on what was drawn.

Shapes: B rows, R of them that have not ended, G gamma, K kept tokens, E input length, S
sequence buffer, L uniforms a token.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from specdec_t5x.contrib.link.drafter import Terms
from specdec_t5x.contrib.truncation import SUM_BELOW, Truncation
from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling

# The number rises when the messages change.
FORMAT = "SL2"
# Statuses of a reply; every other one is the reason why there is no draft.
OK, NO_SESSION = "ok", "no session"
_WEIGHT, _LENGTH, _UNIFORM = "<u2", "<u2", "<f4"
MOST_NUMBERS = 2**24  # of one array of a message


@dataclasses.dataclass(frozen=True)
class Setup:
  """What does not change in a session.

  Attributes:
    terms: what to draft.
    rows: B.
    inputs: E.
    slots: S.
  """

  terms: Terms
  rows: int
  inputs: int
  slots: int

  def __post_init__(self):
    terms = self.terms
    sizes = self.rows, self.slots, terms.gamma, self.inputs + 1
    if not all(is_whole(size, 1) and size <= 2**16 - 1 for size in sizes):
      raise ValueError(f"A link takes from 1 to 65535 rows, tokens and drafts: {self}.")
    if not is_whole(terms.vocab_size, 1) or terms.vocab_size >= 2**31:
      raise ValueError(f"Expected a vocabulary below 2^31, got {terms.vocab_size!r}.")
    probs = max(terms.kept, 1) * self.rows * terms.gamma
    if probs > MOST_NUMBERS:
      raise ValueError(
        f"A link's message has at most {MOST_NUMBERS} probabilities, got {probs}: "
        f"{self.rows} rows, {terms.gamma} drafted tokens, {max(terms.kept, 1)} kept of "
        "each one's distribution. Lower BATCH_SIZE, GAMMA or LINK_TOPK (0 is all)."
      )
    tokens = self.rows * (self.slots + self.inputs)
    if tokens > MOST_NUMBERS:
      raise ValueError(
        f"A link's message has at most {MOST_NUMBERS} tokens, got {tokens}: "
        f"{self.rows} rows of {self.inputs} input tokens and {self.slots} places. "
        "Lower BATCH_SIZE, or inputs and targets of TASK_FEATURE_LENGTHS."
      )

  @classmethod
  def unpacked(cls, part: Any) -> "Setup":
    """Returns the setup that `dataclasses.astuple` made a message's part of.

    Raises:
      ValueError: if the part is no setup.
    """
    try:
      (gamma, cut, sampling, vocab_size), rows, inputs, slots = part
      terms = Terms(gamma, Truncation(*cut), Sampling(*sampling), vocab_size)
      return cls(terms, rows, inputs, slots)
    except TypeError as error:
      raise ValueError(f"Expected a setup, got {part!r:.99}.") from error

  @property
  def token_type(self) -> str:
    """The dtype of a token in a message."""
    return "<u2" if self.terms.vocab_size <= 2**16 else "<u4"


@dataclasses.dataclass(frozen=True)
class Ask:
  """A request for drafts.

  Attributes:
    live: which rows are drafted.
    lengths: the number of known tokens of each row.
    sequences: the tokens of each row.
    uniforms: of each token.
    source: the encoder's inputs; None if the session has them.
  """

  live: np.ndarray  # [B] bool
  lengths: np.ndarray  # [B]
  sequences: np.ndarray  # [B, S]
  uniforms: np.ndarray  # [B, G, L] float32
  source: np.ndarray | None  # [B, E]

  def packed(self, setup: Setup) -> list[bytes | None]:
    """Returns the parts of a message: the live rows and the inputs of all rows."""
    live, lengths = self.live, self.lengths[self.live]
    sequences = self.sequences[live, : lengths.max(initial=0)]
    return [
      live.astype("u1").tobytes(),
      lengths.astype(_LENGTH).tobytes(),
      sequences.astype(setup.token_type).tobytes(),
      self.uniforms[live].astype(_UNIFORM).tobytes(),
      None if self.source is None else self.source.astype(setup.token_type).tobytes(),
    ]

  @classmethod
  def unpacked(cls, parts: Sequence[Any], setup: Setup) -> "Ask":
    """Returns the request in a message's parts, with zeros in rows that are not live.

    Raises:
      ValueError: if the parts are no request of this setup.
    """
    live, lengths, sequences, uniforms, source = _parts(parts, 5)
    live = _array(live, (setup.rows,), "u1")
    live, terms = live.astype(bool), setup.terms
    rows = int(live.sum())
    lengths = _array(lengths, (rows,), _LENGTH)
    if (lengths < 1).any() or (lengths > setup.slots).any():
      raise ValueError(f"Expected lengths from 1 to {setup.slots}, got {lengths}.")
    longest = lengths.max(initial=0)
    tokens = np.zeros((rows, setup.slots), np.int32)
    tokens[:, :longest] = _tokens(sequences, (rows, longest), setup)
    uniforms = _array(uniforms, (rows, terms.gamma, terms.draws), _UNIFORM)
    if source is not None:
      source = _tokens(source, (setup.rows, setup.inputs), setup)
    return cls(
      live,
      _spread(lengths.astype(np.int32), live),
      _spread(tokens, live),
      _spread(uniforms, live),
      source,
    )


@dataclasses.dataclass(frozen=True)
class Drafts:
  """The draft's answer.

  Attributes:
    tokens: the drawn tokens.
    kept: the tokens of each drawn token's distribution, ascending.
    weights: the weights of the kept tokens.
  """

  tokens: np.ndarray  # [B, G]
  kept: np.ndarray  # [B, G, K]
  weights: np.ndarray  # [B, G, K]

  def packed(self, setup: Setup, live: np.ndarray) -> list[bytes]:
    """Returns the parts of a message; a whole vocabulary's tokens are left out."""
    is_whole = setup.terms.kept == setup.terms.vocab_size
    return [
      self.tokens[live].astype(setup.token_type).tobytes(),
      b"" if is_whole else self.kept[live].astype(setup.token_type).tobytes(),
      self.weights[live].astype(_WEIGHT).tobytes(),
    ]

  @classmethod
  def unpacked(cls, parts: Sequence[Any], setup: Setup, live: np.ndarray) -> "Drafts":
    """Returns the drafts in a message's parts.

    Raises:
      ValueError: if the parts are no drafts, if a token is not in the vocabulary, if a
        distribution has a token twice, or if float32 can't sum the weights exactly.
    """
    tokens, kept, weights = _parts(parts, 3)
    terms = setup.terms
    shape = int(live.sum()), terms.gamma
    tokens = _tokens(tokens, shape, setup)
    shape = *shape, terms.kept
    weights = _array(weights, shape, _WEIGHT).astype(np.int32)
    if terms.kept == terms.vocab_size:
      _array(kept, (0,), "u1")
      kept = np.broadcast_to(np.arange(terms.kept, dtype=np.int32), shape)
    else:
      kept = _tokens(kept, shape, setup)
    if (np.diff(kept, axis=-1) < 1).any():
      raise ValueError("A distribution's tokens must be ascending, each once.")
    largest = weights.sum(axis=-1, dtype=np.int64).max(initial=0)
    if largest >= SUM_BELOW:
      raise ValueError(f"Expected weights of a sum below {SUM_BELOW}, got {largest}.")
    return cls(_spread(tokens, live), _spread(kept, live), _spread(weights, live))


def message(number: int, *parts: Any) -> bytes:
  """Returns a message of a session as bytes.

  Args:
    number: of the session.
    *parts: None, bytes, numbers, strings, and tuples of them.
  """
  return msgpack.packb([FORMAT, number, *parts], default=np.generic.item)


def parts_of(data: bytes) -> tuple[int, Any, list[Any]]:
  """Returns a message's number, its first part and its other parts.

  Raises:
    ValueError: if the bytes are no message of this format.
  """
  try:
    parts = msgpack.unpackb(data)
  except (ValueError, msgpack.UnpackException) as error:
    raise ValueError(f"Expected a message of a link: {error}") from error
  if not isinstance(parts, list) or len(parts) < 3 or parts[0] != FORMAT:
    raise ValueError(f"Expected a message of a link's format {FORMAT}, got others.")
  _, number, first, *others = parts
  if not is_whole(number, 0):
    raise ValueError(f"Expected the number of a link's session, got {number!r:.40}.")
  return number, first, others


def _parts(parts, count):
  if len(parts) != count:
    raise ValueError(f"Expected {count} parts of a message, got {len(parts)}.")
  return parts


def _array(data, shape, dtype):
  """Returns bytes as an array; a ValueError if they are no array of this shape."""
  size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  if not isinstance(data, bytes) or len(data) != size:
    raise ValueError(f"Expected an array of {size} bytes for {shape}.")
  return np.frombuffer(data, dtype).reshape(shape)


def _tokens(data, shape, setup):
  """Returns bytes as tokens; a ValueError if one is not in the vocabulary."""
  tokens = _array(data, shape, setup.token_type)
  if tokens.max(initial=0) >= setup.terms.vocab_size:
    vocab_size = setup.terms.vocab_size
    raise ValueError(f"Expected tokens below {vocab_size}, got {tokens.max()}.")
  return tokens.astype(np.int32)


def _spread(rows, live):
  """Returns the live rows among zeros."""
  all_rows = np.zeros((live.size, *rows.shape[1:]), rows.dtype)
  all_rows[live] = rows
  return all_rows
