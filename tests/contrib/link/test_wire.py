"""Messages are decoded bit for bit, and malformed messages are refused."""

import contextlib
import dataclasses

import jax
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.wire import Ask, Drafts, Setup
from specdec_t5x.contrib.truncation import SparseProbs, Truncation
from specdec_t5x.core.distributions import GREEDY, Sampling


def setup_of(rows=3, inputs=4, slots=9, gamma=2, kept=5, vocab_size=40, at=None):
  at = at or Sampling()
  return Setup(gamma, Truncation(kept), at, vocab_size, rows, inputs, slots)


SETUPS = [setup_of(), setup_of(kept=0), setup_of(at=GREEDY), setup_of(1, 0, 30, 5, 9)]


def drafts_of(setup, rng):
  shape = (setup.rows, setup.gamma)

  def choose():
    return np.sort(rng.choice(setup.vocab_size, setup.kept, replace=False))

  kept = np.array([choose() for _ in range(np.prod(shape))]).astype(int)
  weights = rng.integers(0, 2**16, (*shape, setup.kept))
  tokens = rng.integers(0, setup.vocab_size, shape)
  return Drafts(tokens, SparseProbs(kept.reshape(weights.shape), weights))


def ask_of(setup, rng):
  """Returns a random request, with zeros in unused places."""
  live = rng.random(setup.rows) < 0.7
  lengths = rng.integers(1, setup.slots + 1, setup.rows) * live
  is_known = np.arange(setup.slots) < lengths[:, None]

  def tokens(size):
    return rng.integers(0, setup.vocab_size, (setup.rows, size))

  shape = setup.rows, setup.gamma, setup.draws
  uniforms = rng.integers(0, 2**24, shape) * np.float32(2.0**-24)
  source = tokens(setup.inputs) if rng.random() < 0.5 else None
  uniforms = uniforms * live[:, None, None]
  return Ask(lengths, tokens(setup.slots) * is_known, uniforms, source)


def read_ask(data, setup):
  return Ask.unpacked(wire.parts_of(data), setup)


def read_drafts(data, setup):
  return Drafts.unpacked(wire.parts_of(data), setup, np.ones(setup.rows, bool))


def sent(ask, setup):
  """Returns a request, or drafts of all rows, as a message."""
  rows = () if isinstance(ask, Ask) else (np.ones(setup.rows, bool),)
  return wire.message(*ask.packed(setup, *rows))


def assert_equal(one, other):
  jax.tree.map(np.testing.assert_array_equal, one, other)


def test_weights_with_sums_beyond_float32_are_refused():
  setup = setup_of(1, gamma=1, kept=0, vocab_size=257)
  tokens = np.arange(257)[None, None]
  weights = np.full((1, 1, 257), 2**16 - 1)
  drafts = Drafts(tokens[..., 0], SparseProbs(tokens, weights))
  weights[..., -1] = 255
  assert_equal(read_drafts(sent(drafts, setup), setup), drafts)
  weights[..., -1] = 256
  with pytest.raises(ValueError, match="sum below 16777216, got 16777216"):
    read_drafts(sent(drafts, setup), setup)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SETUPS))
def test_messages_survive_a_round_trip(seed, setup):
  rng = np.random.default_rng(seed)
  ask = ask_of(setup, rng)
  drafts = drafts_of(setup, rng)
  assert_equal(ask, read_ask(sent(ask, setup), setup))
  assert_equal(drafts, read_drafts(sent(drafts, setup), setup))
  message = wire.message(dataclasses.astuple(setup))
  assert Setup.unpacked(wire.parts_of(message)[0]) == setup


def messages_of(setup):
  """Returns both messages of a session with their readers."""
  rng = np.random.default_rng(0)
  return (
    (sent(ask_of(setup, rng), setup), read_ask),
    (sent(drafts_of(setup, rng), setup), read_drafts),
  )


@pytest.mark.parametrize("setup", SETUPS, ids=range(len(SETUPS)))
def test_truncated_and_extended_messages_are_refused(setup):
  for message, read in messages_of(setup):
    others = [message[:cut] for cut in range(len(message))]
    foreign = message.replace(wire.MAGIC.encode(), b"SSH")
    for other in [*others, message + b"\0", foreign]:
      with pytest.raises(ValueError):
        read(other, setup)


# Any content that msgpack may hold in place of a part.
PARTS = st.recursive(
  st.none() | st.booleans() | st.integers(-9, 2**40) | st.floats() | st.binary(),
  lambda part: st.lists(part) | st.dictionaries(st.text(max_size=2), part),
  max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.lists(PARTS, max_size=6), st.sampled_from(SETUPS))
def test_garbage_is_read_as_a_message_or_raises_a_value_error(data, parts, setup):
  """The garbage is any bytes, frames with arbitrary parts, or a changed message."""
  found = [data, msgpack.packb(parts), wire.message(*parts)]
  for message, _ in messages_of(setup):
    place = int.from_bytes(data) % len(message)
    found.append(message[:place] + data[:1] + message[place + len(data[:1]) :])
  for message in found:
    for read in (read_ask, read_drafts, lambda x, _: Setup.unpacked(x)):
      with contextlib.suppress(ValueError):
        read(message, setup)


@pytest.mark.parametrize(
  ("name", "value", "says"),
  [
    ("drawn", 40, "Expected tokens below 40, got 40"),
    ("kept", 63, "Expected tokens below 40, got 63"),
    ("kept", 3, "strictly ascending"),
  ],
)
def test_invalid_distributions_are_refused(name, value, says):
  setup = setup_of()
  drafts = drafts_of(setup, np.random.default_rng(0))
  tokens = drafts.tokens if name == "drawn" else drafts.distribution.tokens
  tokens[...] = value
  with pytest.raises(ValueError, match=says):
    read_drafts(sent(drafts, setup), setup)


@pytest.mark.parametrize(
  ("kept", "vocab_size", "bits"),
  [
    (1, 8064, 48),
    (32, 8064, 32 * 32 + 16),
    (0, 8064, 16 * 8065),
    (8, 70000, 8 * 48 + 32),
  ],
)
def test_a_reply_has_the_documented_length(kept, vocab_size, bits):
  """docs/methods/link.md has the formula. A message adds less than 32 bytes."""
  setup = setup_of(4, gamma=5, kept=kept, vocab_size=vocab_size)
  rng = np.random.default_rng(0)
  drafts = drafts_of(setup, rng).packed(setup, np.ones(4, bool))
  assert 8 * sum(map(len, drafts)) == 4 * 5 * bits
  assert len(wire.message("ok", *drafts)) - sum(map(len, drafts)) < 32


@pytest.mark.parametrize(
  ("sizes", "says"),
  [
    ({"rows": 60000, "slots": 60000}, "at most 16777216 tokens .* got 3600240000 and"),
    ({"slots": 2**16}, "from 1 to 65535 rows"),
    ({"vocab_size": 0}, "from 1 to 65535"),
  ],
)
def test_too_large_a_session_is_refused(sizes, says):
  """test_link.py tests the command's refusals."""
  with pytest.raises(ValueError, match=says):
    setup_of(**sizes)
