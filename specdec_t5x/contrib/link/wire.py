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

from specdec_t5x.contrib.link.drafter import Setup
from specdec_t5x.contrib.truncation import SUM_BELOW
from specdec_t5x.core.checks import is_whole

# The number rises when the messages change.
FORMAT = "SL2"
# Statuses of a reply; every other one is the reason why there is no draft.
OK, NO_SESSION = "ok", "no session"
_WEIGHT, _LENGTH, _UNIFORM = "<u2", "<u2", "<f4"


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
      sequences.astype(token_type(setup)).tobytes(),
      self.uniforms[live].astype(_UNIFORM).tobytes(),
      None if self.source is None else self.source.astype(token_type(setup)).tobytes(),
    ]

  @classmethod
  def unpacked(cls, parts: Sequence[Any], setup: Setup) -> "Ask":
    """Returns the request in a message's parts, with zeros in rows that are not live.

    Raises:
      ValueError: if the parts are no request of this setup.
    """
    live, lengths, sequences, uniforms, source = parts
    live = _array(live, (setup.rows,), "u1")
    live = live.astype(bool)
    rows = int(live.sum())
    lengths = _array(lengths, (rows,), _LENGTH)
    if (lengths < 1).any() or (lengths > setup.slots).any():
      raise ValueError(f"Expected lengths from 1 to {setup.slots}, got {lengths}.")
    longest = lengths.max(initial=0)
    tokens = np.zeros((rows, setup.slots), np.int32)
    tokens[:, :longest] = _tokens(sequences, (rows, longest), setup)
    uniforms = _array(uniforms, (rows, setup.gamma, setup.draws), _UNIFORM)
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
    is_whole = setup.kept == setup.vocab_size
    return [
      self.tokens[live].astype(token_type(setup)).tobytes(),
      b"" if is_whole else self.kept[live].astype(token_type(setup)).tobytes(),
      self.weights[live].astype(_WEIGHT).tobytes(),
    ]

  @classmethod
  def unpacked(cls, parts: Sequence[Any], setup: Setup, live: np.ndarray) -> "Drafts":
    """Returns the drafts in a message's parts.

    Raises:
      ValueError: if the parts are no drafts, if a token is not in the vocabulary, if a
        distribution has a token twice, or if float32 can't sum the weights exactly.
    """
    tokens, kept, weights = parts
    shape = int(live.sum()), setup.gamma
    tokens = _tokens(tokens, shape, setup)
    shape = *shape, setup.kept
    weights = _array(weights, shape, _WEIGHT).astype(np.int32)
    if setup.kept == setup.vocab_size:
      _array(kept, (0,), "u1")
      kept = np.broadcast_to(np.arange(setup.kept, dtype=np.int32), shape)
    else:
      kept = _tokens(kept, shape, setup)
    if (np.diff(kept, axis=-1) < 1).any():
      raise ValueError("A distribution's tokens must be ascending, each once.")
    largest = weights.sum(axis=-1, dtype=np.int64).max(initial=0)
    if largest >= SUM_BELOW:
      raise ValueError(f"Expected weights of a sum below {SUM_BELOW}, got {largest}.")
    return cls(_spread(tokens, live), _spread(kept, live), _spread(weights, live))


def token_type(setup: Setup) -> str:
  """Returns the dtype of a token in a message."""
  return "<u2" if setup.vocab_size <= 2**16 else "<u4"


def message(number: int, *parts: Any) -> bytes:
  """Returns a message of a session as bytes.

  Args:
    number: of the session.
    *parts: None, bytes, numbers, strings, and tuples of them.
  """
  return msgpack.packb([FORMAT, number, *parts], default=np.generic.item)


def parts_of(data: bytes) -> tuple[int, Any, list[Any]]:
  """Returns a message's session, its setup or status, and its other parts.

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


def _array(data, shape, dtype):
  """Returns bytes as an array; a ValueError if they are no array of this shape."""
  size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  if not isinstance(data, bytes) or len(data) != size:
    raise ValueError(f"Expected an array of {size} bytes for {shape}.")
  return np.frombuffer(data, dtype).reshape(shape)


def _tokens(data, shape, setup):
  """Returns bytes as tokens; a ValueError if one is not in the vocabulary."""
  tokens = _array(data, shape, token_type(setup))
  if tokens.max(initial=0) >= setup.vocab_size:
    vocab_size = setup.vocab_size
    raise ValueError(f"Expected tokens below {vocab_size}, got {tokens.max()}.")
  return tokens.astype(np.int32)


def _spread(rows, live):
  """Returns the live rows among zeros."""
  all_rows = np.zeros((live.size, *rows.shape[1:]), rows.dtype)
  all_rows[live] = rows
  return all_rows
