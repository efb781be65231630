"""The messages: a fixed head, then whole numbers as bits, and nothing else.

What comes is checked before it is used: lengths against the head's, tokens against the
vocabulary, distributions for being distributions. All messages of a session that draft
so many rows are of one size, so neither the time that one takes nor its loss depends on
what was drawn.

Shapes: B rows, R of them that have not ended, G gamma, K kept tokens, E input length, S
sequence buffer, L uniforms a token.
"""

import dataclasses
import enum
import struct

import numpy as np

from specdec_t5x.contrib.link.bits import Reader, packed
from specdec_t5x.contrib.link.drafter import Terms
from specdec_t5x.contrib.truncation import (
  SUM_BELOW,
  WEIGHT_BITS,
  Truncation,
  token_bits,
)
from specdec_t5x.core.distributions import Sampling

MAGIC = b"SL"
# Magic, kind or status, session (or, of an answer to `about`, the vocabulary's size).
_HEAD = struct.Struct("<2sBI")
# Rows, E, S, gamma, V, top_k and top_p of the truncation, the sampling.
_SETUP = struct.Struct("<HHHHIIddId?")
# Bytes of a session, and those that a draft's process holds.
_REFUSAL = struct.Struct("<QQ")
_UNIFORM_BITS = 24
MOST_NUMBERS = 2**24  # of one array of a message


class Kind(enum.IntEnum):
  """What a request is."""

  OPEN = 0  # A session's first: its setup follows the head.
  DRAFT = 1


class Status(enum.IntEnum):
  """What became of a request."""

  OK = 0
  NO_SESSION = 1
  BAD_REQUEST = 2
  OTHER_VOCABULARY = 3
  TOO_LARGE = 4  # What a session would take, and what there is, follow the head.


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
    sizes = self.rows, self.slots, terms.gamma
    if not all(sizes) or max(*sizes, self.inputs) >= 2**16:
      raise ValueError(f"A link takes from 1 to 65535 rows, tokens and drafts: {self}.")
    counts = {
      "top_k of the draft (LINK_TOPK)": terms.truncation.top_k,
      "top_k of the sampling (TOPK)": terms.sampling.top_k,
    }
    for name, count in counts.items():
      if count >= 2**32:
        raise ValueError(
          f"A link takes numbers below 2^32, got {count} as {name}. Lower it: the "
          f"vocabulary has {terms.vocab_size} tokens, and 0 keeps all."
        )
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

  def packed(self) -> bytes:
    """Returns it as bytes."""
    terms = self.terms
    cut, sampling = terms.truncation, terms.sampling
    return _SETUP.pack(
      *(self.rows, self.inputs, self.slots, terms.gamma, terms.vocab_size),
      *(cut.top_k, cut.top_p, *dataclasses.astuple(sampling)),
    )

  @classmethod
  def unpacked(cls, data: bytes) -> "Setup":
    """Returns the setup that these bytes are; a ValueError where they are none."""
    try:
      numbers = _SETUP.unpack(data)
    except struct.error as error:
      raise ValueError(f"No setup: {error}.") from error
    rows, inputs, slots, gamma, vocab_size, top_k, top_p, *sampling = numbers
    terms = Terms(gamma, Truncation(top_k, top_p), Sampling(*sampling), vocab_size)
    return cls(terms, rows, inputs, slots)

  @property
  def reply_bits(self) -> int:
    """Bits of a drafted token in a reply, as `core.sparse.probs_bits` says."""
    number, kept = token_bits(self.terms.vocab_size), self.terms.kept
    is_whole = kept == self.terms.vocab_size
    return number + kept * (WEIGHT_BITS + (0 if is_whole else number))


@dataclasses.dataclass(frozen=True)
class Ask:
  """What the draft's process is told.

  Attributes:
    live: which rows are drafted.
    known: how many tokens of each it is taken to know; 0 where the input is new.
    lengths: how many there are.
    source: the input of each row; read where `known` is 0.
    sequences: the tokens; read from `known` to `lengths`.
    uniforms: of each token.
  """

  live: np.ndarray  # [B] bool
  known: np.ndarray  # [B]
  lengths: np.ndarray  # [B]
  source: np.ndarray  # [B, E]
  sequences: np.ndarray  # [B, S]
  uniforms: np.ndarray  # [B, G, L] float32

  def packed(self, setup: Setup) -> bytes:
    """Returns the live rows as bytes."""
    live, bits = self.live, token_bits(setup.terms.vocab_size)
    known, lengths = self.known[live], self.lengths[live]
    count, is_new = setup.slots.bit_length(), between(known, lengths, setup.slots)
    uniforms = np.floor(self.uniforms[live] * 2.0**_UNIFORM_BITS)
    return packed(
      [
        (live, 1),
        (known, count),
        (lengths, count),
        (self.source[live][known == 0], bits),
        (self.sequences[live][is_new], bits),
        (uniforms, _UNIFORM_BITS),
      ]
    )

  @classmethod
  def unpacked(cls, data: bytes, setup: Setup) -> "Ask":
    """Returns what these bytes ask; zeros in the rows that they say nothing of.

    Raises:
      ValueError: where they are no question of this setup.
    """
    read, terms, bits = Reader(data), setup.terms, token_bits(setup.terms.vocab_size)
    live = read.take((setup.rows,), 1).astype(bool)
    rows, count = int(live.sum()), setup.slots.bit_length()
    known, lengths = read.take((rows,), count), read.take((rows,), count)
    if (known > lengths).any() or (lengths < 1).any() or (lengths > setup.slots).any():
      raise ValueError(f"Lengths from 1 to {setup.slots} expected, got {lengths}.")
    new, is_new = known == 0, between(known, lengths, setup.slots)
    source = np.zeros((rows, setup.inputs), np.int64)
    source[new] = read.take((int(new.sum()), setup.inputs), bits)
    sequences = np.zeros((rows, setup.slots), np.int64)
    sequences[is_new] = read.take((int(is_new.sum()),), bits)
    check_tokens(source, terms.vocab_size)
    check_tokens(sequences, terms.vocab_size)
    uniforms = read.take((rows, terms.gamma, terms.draws), _UNIFORM_BITS)
    read.end()
    uniforms = uniforms.astype(np.float32) * np.float32(2.0**-_UNIFORM_BITS)
    given = known, lengths, source, sequences, uniforms
    return cls(live, *(_spread(rows, live) for rows in given))


@dataclasses.dataclass(frozen=True)
class Drafts:
  """What the draft's process answers.

  Attributes:
    tokens: that it drew.
    kept: the tokens of each one's distribution.
    weights: theirs.
  """

  tokens: np.ndarray  # [B, G]
  kept: np.ndarray  # [B, G, K]
  weights: np.ndarray  # [B, G, K]

  def packed(self, setup: Setup, live: np.ndarray) -> bytes:
    """Returns the live rows as bytes."""
    terms, bits = setup.terms, token_bits(setup.terms.vocab_size)
    kept = self.kept[live] if terms.kept < terms.vocab_size else np.zeros(0)
    return packed(
      [(self.tokens[live], bits), (kept, bits), (self.weights[live], WEIGHT_BITS)]
    )

  @classmethod
  def unpacked(cls, data: bytes, setup: Setup, live: np.ndarray) -> "Drafts":
    """Returns the drafts that these bytes are.

    Raises:
      ValueError: where they are none, or tokens are none of the vocabulary, or come
        twice in a distribution, or weights together are more than float32 sums exactly.
    """
    read, terms, bits = Reader(data), setup.terms, token_bits(setup.terms.vocab_size)
    shape = int(live.sum()), terms.gamma
    tokens = read.take(shape, bits)
    kept = np.broadcast_to(np.arange(terms.kept), (*shape, terms.kept))
    if terms.kept < terms.vocab_size:
      kept = read.take(kept.shape, bits)
    weights = read.take(kept.shape, WEIGHT_BITS)
    read.end()
    check_tokens(tokens, terms.vocab_size)
    check_tokens(kept, terms.vocab_size)
    if (np.diff(kept, axis=-1) < 1).any():
      raise ValueError("A distribution's tokens must be ascending, each once.")
    largest = weights.sum(axis=-1).max(initial=0)
    if largest >= SUM_BELOW:
      raise ValueError(f"Expected weights of a sum below {SUM_BELOW}, got {largest}.")
    return cls(*(_spread(rows, live) for rows in (tokens, kept, weights)))


def head(kind: int, number: int) -> bytes:
  """Returns what a message begins with."""
  return _HEAD.pack(MAGIC, kind, number)


def beheaded(message: bytes) -> tuple[int, int, bytes]:
  """Returns a message's kind or status, its number, and what follows.

  Raises:
    ValueError: where it is no message of this link.
  """
  if len(message) < _HEAD.size or message[: len(MAGIC)] != MAGIC:
    raise ValueError(f"Expected a message of a link, got {len(message)} other bytes.")
  _, kind, number = _HEAD.unpack_from(message)
  return kind, number, message[_HEAD.size :]


def refusal(number: int, size: int, most: int) -> bytes:
  """Returns the reply to a session of more bytes than the draft's process holds."""
  return head(Status.TOO_LARGE, number) + _REFUSAL.pack(size, most)


def refused(body: bytes) -> tuple[int, int]:
  """Returns the bytes that a refused session would take, and how many there are.

  Raises:
    ValueError: where the body is no refusal's.
  """
  if len(body) != _REFUSAL.size:
    raise ValueError(f"Expected {_REFUSAL.size} bytes of a refusal, got {len(body)}.")
  return _REFUSAL.unpack(body)


def opened(data: bytes) -> tuple[Setup, bytes]:
  """Returns the setup that an opening request begins with, and what follows."""
  return Setup.unpacked(data[: _SETUP.size]), data[_SETUP.size :]


def check_tokens(tokens: np.ndarray, vocab_size: int) -> None:
  """Raises a ValueError where a number is no token."""
  if tokens.size and tokens.max() >= vocab_size:
    raise ValueError(f"Expected tokens below {vocab_size}, got {tokens.max()}.")


def between(known, lengths, slots):
  """Returns which places of each row are new, [R, S], where so many are known."""
  places = np.arange(slots)
  return (places >= known[:, None]) & (places < lengths[:, None])


def _spread(rows, live):
  """Returns the live rows among zeros."""
  all_rows = np.zeros((live.size, *rows.shape[1:]), rows.dtype)
  all_rows[live] = rows
  return all_rows
