"""The messages: msgpack arrays of a magic word and a message's parts.

A request has the session's number, the session's setup (None if the session is open)
and an `Ask`. A reply has a status and `Drafts`. The receiver checks every part before
use: lengths against the session's setup, tokens against the vocabulary, and weights for
the properties of a distribution. All replies of a session with the same number of live
rows have the same size. Therefore neither the time nor the loss of a reply depends on
the drawn tokens.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms
per token.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.contrib.truncation import SUM_BELOW, SparseProbs, Truncation
from specdec_t5x.core.distributions import Sampling, draws_per_token
from specdec_t5x.core.knobs import KnobError, Name, is_whole
from specdec_t5x.core.noise import WORDS

# The gRPC method of the draft's process, and the options of both sides.
SERVICE = "specdec_t5x.Link"
METHOD = "answer"
OPTIONS = (
  ("grpc.max_send_message_length", 2**28),
  ("grpc.max_receive_message_length", 2**28),
)
MAGIC = "SDL"  # The first part of every message.
# Statuses of a reply. Any other status is the reason why there is no draft.
OK = "ok"
NO_SESSION = "no session"
_MOST_NUMBERS = 2**24  # The largest size of an array in a message.


@dataclasses.dataclass(frozen=True)
class Setup:
  """The settings of a session, on which both sides agree."""

  gamma: int  # The number of tokens of a draft.
  truncation: Truncation  # Of the draft's distributions.
  sampling: Sampling  # The adjustment of the distributions before the truncation.
  vocab_size: int  # Of target and draft.
  rows: int  # B, the number of rows.
  inputs: int  # E, the length of the inputs.
  slots: int  # S, the length of the sequence buffer.

  def __post_init__(self):
    sizes = self.rows, self.slots, self.gamma, self.inputs + 1
    are_valid = all(is_whole(x, 1) and x < 2**16 for x in sizes)
    if not are_valid or not is_whole(self.vocab_size, 1):
      raise ValueError(
        f"A link takes from 1 to 65535 rows, tokens and drafts, got {self}. Lower the "
        "sizes."
      )
    tokens = self.rows * (self.slots + self.inputs)
    probs = self.rows * self.gamma * max(self.kept, 1)
    if max(tokens, probs) > _MOST_NUMBERS:
      raise KnobError(
        "A link's message has at most {most} tokens and {most} probabilities, got "
        "{tokens} and {probs}: {setup}. Lower {batch_size}, {gamma}, {top_k} (0 keeps "
        "the whole distribution) or {max_length}.",
        most=_MOST_NUMBERS,
        tokens=tokens,
        probs=probs,
        setup=self,
        top_k=Name("top_k", "LINK_TOPK"),
      )

  @property
  def kept(self) -> int:
    """K; 0 if tokens are certain, as no distribution is sent then."""
    return 0 if self.sampling.certain else self.truncation.size(self.vocab_size)

  @property
  def draws(self) -> int:
    """The number of uniforms per token."""
    if self.kept:
      return draws_per_token(self.kept)
    return WORDS if self.sampling.coupled else 0

  @property
  def token_type(self) -> str:
    """The dtype of a token in a message."""
    return "<u2" if self.vocab_size <= 2**16 else "<u4"

  @property
  def shapes(self) -> "Drafts":
    """The shapes of the drafts of all rows."""
    kept = jax.ShapeDtypeStruct((self.rows, self.gamma, self.kept), jnp.int32)
    tokens = jax.ShapeDtypeStruct((self.rows, self.gamma), jnp.int32)
    return Drafts(tokens, SparseProbs(kept, kept))

  @classmethod
  def unpacked(cls, part: Any) -> "Setup":
    """Returns the setup of a message; raises a ValueError if `part` is no setup."""
    try:
      gamma, truncation, sampling, *sizes = part
      return cls(gamma, Truncation(*truncation), Sampling(*sampling), *sizes)
    except TypeError as error:
      raise ValueError(f"Expected a setup, got {part!r:.99}.") from error


@flax.struct.dataclass
class Ask:
  """A request for drafts."""

  lengths: Int[Array, "B"]  # The number of known tokens; 0 in rows without a draft.
  sequences: Int[Array, "B S"]  # The known tokens.
  uniforms: Float[Array, "B G L"]  # The uniforms of each token.
  source: Int[Array, "B E"] | None  # The inputs; None if the session has the inputs.

  @property
  def live(self) -> Bool[Array, "B"]:
    """Whether each row needs a draft."""
    return self.lengths > 0

  def packed(self, setup: Setup) -> list[bytes | None]:
    """Returns the parts of a message: the live rows and the inputs of all rows."""
    sequences = self.sequences[self.live, : self.lengths.max()]
    token = setup.token_type
    return [
      self.lengths.astype("<u2").tobytes(),
      sequences.astype(token).tobytes(),
      self.uniforms[self.live].astype("<f4").tobytes(),
      None if self.source is None else self.source.astype(token).tobytes(),
    ]

  @classmethod
  def unpacked(cls, parts: Sequence[Any], setup: Setup) -> "Ask":
    """Returns the request of a message's parts, with zeros in rows that are not live.

    Raises a ValueError if the parts are no request of this setup.
    """
    lengths, sequences, uniforms, source = parts
    every = np.ones(setup.rows, bool)
    lengths = _live_rows(lengths, every, (), "<u2").astype(np.int32)
    live = lengths > 0
    longest = lengths.max()
    if longest > setup.slots:
      raise ValueError(f"Expected lengths of at most {setup.slots}, got {lengths}.")
    sequences = _tokens(sequences, live, (longest,), setup)
    sequences = np.pad(sequences, ((0, 0), (0, setup.slots - longest)))
    uniforms = _live_rows(uniforms, live, (setup.gamma, setup.draws), "<f4")
    if source is not None:
      source = _tokens(source, every, (setup.inputs,), setup)
    return cls(lengths, sequences, uniforms, source)


@flax.struct.dataclass
class Drafts:
  """The draft's answer."""

  tokens: Int[Array, "B G"]  # The drawn tokens.
  distribution: SparseProbs  # The distributions [B, G, K] of the tokens.

  def packed(self, setup: Setup, live: Bool[Array, "B"]) -> list[bytes]:
    """Returns the parts of a message, without token ids if all tokens are kept."""
    kept = self.distribution.tokens[live].astype(setup.token_type).tobytes()
    return [
      self.tokens[live].astype(setup.token_type).tobytes(),
      b"" if setup.kept == setup.vocab_size else kept,
      self.distribution.weights[live].astype("<u2").tobytes(),
    ]

  @classmethod
  def unpacked(
    cls, parts: Sequence[Any], setup: Setup, live: Bool[Array, "B"]
  ) -> "Drafts":
    """Returns the drafts of a message's parts.

    Raises a ValueError if the parts are no drafts, a token is not in the vocabulary, a
    distribution has a token twice, or float32 can't sum the weights exactly.
    """
    tokens, kept, weights = parts
    shape = setup.gamma, setup.kept
    tokens = _tokens(tokens, live, (setup.gamma,), setup)
    weights = _live_rows(weights, live, shape, "<u2").astype(np.int32)
    if setup.kept == setup.vocab_size:
      _live_rows(kept, live, (0,), "u1")
      kept = np.broadcast_to(np.arange(setup.kept, dtype=np.int32), weights.shape)
    else:
      kept = _tokens(kept, live, shape, setup)
    if (np.diff(kept[live], axis=-1) < 1).any():
      raise ValueError("A distribution's tokens must be strictly ascending.")
    largest = weights.sum(axis=-1, dtype=np.int64).max(initial=0)
    if largest >= SUM_BELOW:
      raise ValueError(f"Expected weights with a sum below {SUM_BELOW}, got {largest}.")
    return cls(tokens, SparseProbs(kept, weights))


def message(*parts: Any) -> bytes:
  """Returns a message of None, bytes, numbers, strings, and tuples of these types."""
  return msgpack.packb([MAGIC, *parts], default=np.generic.item)


def parts_of(data: bytes) -> list[Any]:
  """Returns a message's parts; raises a ValueError if `data` is no link's message."""
  parts = msgpack.unpackb(data)
  if not isinstance(parts, list) or parts[:1] != [MAGIC]:
    raise ValueError(f"Expected a message of a link that starts with {MAGIC!r}.")
  return parts[1:]


def _live_rows(data, live, shape, dtype):
  """Returns bytes of the live rows as an array of all rows, with zeros elsewhere."""
  shape = int(live.sum()), *shape
  size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  if not isinstance(data, bytes) or len(data) != size:
    raise ValueError(f"Expected an array of {size} bytes for {shape}.")
  rows = np.zeros((live.size, *shape[1:]), dtype)
  rows[live] = np.frombuffer(data, dtype).reshape(shape)
  return rows


def _tokens(data, live, shape, setup):
  """Returns bytes as tokens of the vocabulary, like `_live_rows`."""
  tokens = _live_rows(data, live, shape, setup.token_type)
  if tokens.max(initial=0) >= setup.vocab_size:
    raise ValueError(f"Expected tokens below {setup.vocab_size}, got {tokens.max()}.")
  return tokens.astype(np.int32)
