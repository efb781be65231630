"""The messages: msgpack arrays of a magic word, a session's number and bytes.

The receiver checks every part before use: lengths against the session's setup, tokens
against the vocabulary, and weights for the properties of a distribution. All replies of
a session with the same number of live rows have the same size. Therefore neither the
time nor the loss of a reply depends on the drawn tokens.

Shapes: B rows, R live rows, G gamma, K kept tokens, E input length, S sequence buffer,
L uniforms per token.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from specdec_t5x.contrib.link.drafter import Setup
from specdec_t5x.contrib.truncation import SUM_BELOW
from specdec_t5x.core.knobs import is_whole

# The gRPC method of the draft's process, and the options of both sides.
SERVICE = "specdec_t5x.Link"
METHOD = "answer"
OPTIONS = (
  ("grpc.max_send_message_length", 2**28),
  ("grpc.max_receive_message_length", 2**28),
)
# The first part of every message.
MAGIC = "SDL"
# Statuses of a reply. Any other status is the reason why there is no draft.
OK = "ok"
NO_SESSION = "no session"
# Data types in messages.
_WEIGHT = "<u2"
_LENGTH = "<u2"
_UNIFORM = "<f4"


@dataclasses.dataclass(frozen=True)
class Ask:
  """A request for drafts."""

  live: np.ndarray  # [B] bool: whether each row needs a draft.
  lengths: np.ndarray  # [B]: the number of known tokens.
  sequences: np.ndarray  # [B, S]: the tokens.
  uniforms: np.ndarray  # [B, G, L] float32: the uniforms of each token.
  source: (
    np.ndarray | None
  )  # [B, E]: the encoder's inputs; None if the session has them.

  def packed(self, setup: Setup) -> list[bytes | None]:
    """Returns the parts of a message: the live rows and the inputs of all rows."""
    live = self.live
    lengths = self.lengths[live]
    sequences = self.sequences[live, : lengths.max(initial=0)]
    source = self.source
    if source is not None:
      source = source.astype(token_type(setup)).tobytes()
    return [
      live.astype("u1").tobytes(),
      lengths.astype(_LENGTH).tobytes(),
      sequences.astype(token_type(setup)).tobytes(),
      self.uniforms[live].astype(_UNIFORM).tobytes(),
      source,
    ]

  @classmethod
  def unpacked(cls, parts: Sequence[Any], setup: Setup) -> "Ask":
    """Returns the request of a message's parts, with zeros in rows that are not live.

    Raises:
      ValueError: if the parts are no request of this setup.
    """
    live, lengths, sequences, uniforms, source = parts
    live = _array(live, (setup.rows,), "u1").astype(bool)
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
  """The draft's answer."""

  tokens: np.ndarray  # [B, G]: the drawn tokens.
  kept: np.ndarray  # [B, G, K]: the tokens of each token's distribution, ascending.
  weights: np.ndarray  # [B, G, K]: the weights of the kept tokens.

  def packed(self, setup: Setup, live: np.ndarray) -> list[bytes]:
    """Returns the parts of a message, without `kept` if all tokens are kept."""
    kept = b""
    if setup.kept != setup.vocab_size:
      kept = self.kept[live].astype(token_type(setup)).tobytes()
    return [
      self.tokens[live].astype(token_type(setup)).tobytes(),
      kept,
      self.weights[live].astype(_WEIGHT).tobytes(),
    ]

  @classmethod
  def unpacked(cls, parts: Sequence[Any], setup: Setup, live: np.ndarray) -> "Drafts":
    """Returns the drafts of a message's parts.

    Raises:
      ValueError: if the parts are no drafts, if a token is not in the vocabulary, if a
        distribution has a token twice, or if float32 can't sum the weights exactly.
    """
    tokens, kept, weights = parts
    tokens_shape = int(live.sum()), setup.gamma
    kept_shape = *tokens_shape, setup.kept
    tokens = _tokens(tokens, tokens_shape, setup)
    weights = _array(weights, kept_shape, _WEIGHT).astype(np.int32)
    if setup.kept == setup.vocab_size:
      _array(kept, (0,), "u1")
      kept = np.broadcast_to(np.arange(setup.kept, dtype=np.int32), kept_shape)
    else:
      kept = _tokens(kept, kept_shape, setup)
    if (np.diff(kept, axis=-1) < 1).any():
      raise ValueError("A distribution's tokens must be strictly ascending.")
    largest = weights.sum(axis=-1, dtype=np.int64).max(initial=0)
    if largest >= SUM_BELOW:
      raise ValueError(f"Expected weights with a sum below {SUM_BELOW}, got {largest}.")
    return cls(_spread(tokens, live), _spread(kept, live), _spread(weights, live))


def token_type(setup: Setup) -> str:
  """Returns the dtype of a token in a message."""
  return "<u2" if setup.vocab_size <= 2**16 else "<u4"


def message(number: int, *parts: Any) -> bytes:
  """Returns a message of a session as bytes.

  Args:
    number: the session's number.
    *parts: None, bytes, numbers, strings, and tuples of these types.
  """
  return msgpack.packb([MAGIC, number, *parts], default=np.generic.item)


def parts_of(data: bytes) -> tuple[int, Any, list[Any]]:
  """Returns a message's session number, setup or status, and other parts.

  Raises:
    ValueError: if the bytes are no message of a link.
  """
  try:
    parts = msgpack.unpackb(data)
  except (ValueError, msgpack.UnpackException) as error:
    raise ValueError(f"Expected a message of a link: {error}") from error
  if not isinstance(parts, list) or len(parts) < 3 or parts[0] != MAGIC:
    raise ValueError(f"Expected a message of a link that starts with {MAGIC!r}.")
  _, number, first, *others = parts
  if not is_whole(number, 0):
    raise ValueError(f"Expected the number of a link's session, got {number!r:.40}.")
  return number, first, others


def _array(data, shape, dtype):
  """Returns bytes as an array; raises a ValueError if the size differs."""
  size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  if not isinstance(data, bytes) or len(data) != size:
    raise ValueError(f"Expected an array of {size} bytes for {shape}.")
  return np.frombuffer(data, dtype).reshape(shape)


def _tokens(data, shape, setup):
  """Returns bytes as tokens; raises a ValueError for a token outside the vocabulary."""
  tokens = _array(data, shape, token_type(setup))
  if tokens.max(initial=0) >= setup.vocab_size:
    raise ValueError(f"Expected tokens below {setup.vocab_size}, got {tokens.max()}.")
  return tokens.astype(np.int32)


def _spread(rows, live):
  """Returns an array of all rows, with zeros in rows that are not live."""
  all_rows = np.zeros((live.size, *rows.shape[1:]), rows.dtype)
  all_rows[live] = rows
  return all_rows
