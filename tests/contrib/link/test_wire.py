"""Messages: what goes in comes out bit for bit, and nothing else is taken."""

import contextlib
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.bits import Reader, packed
from specdec_t5x.contrib.link.drafter import Terms
from specdec_t5x.contrib.link.wire import Ask, Drafts, Setup
from specdec_t5x.contrib.truncation import Truncation, probs_bits
from specdec_t5x.core.distributions import GREEDY, Sampling


def setup_of(rows=3, inputs=4, slots=9, gamma=2, kept=5, vocab_size=40, at=None):
  terms = Terms(gamma, Truncation(kept), at or Sampling(), vocab_size)
  return Setup(terms, rows, inputs, slots)


SETUPS = [setup_of(), setup_of(kept=0), setup_of(at=GREEDY), setup_of(1, 0, 30, 5, 9)]


def test_weights_whose_sum_float32_may_round_are_refused():
  setup, one = setup_of(1, gamma=1, kept=0, vocab_size=257), np.ones(1, bool)
  tokens = np.arange(257)[None, None]
  for last, says in ((255, None), (256, "sum below 16777216, got 16777216")):
    weights = np.full((1, 1, 257), 2**16 - 1)
    weights[..., -1] = last
    drafts = Drafts(tokens[..., 0], tokens, weights)
    read = lambda drafts=drafts: Drafts.unpacked(drafts.packed(setup, one), setup, one)
    if says is None:
      assert_equal(read(), drafts)
    else:
      with pytest.raises(ValueError, match=says):
        read()


def drafts_of(setup, rng):
  """Any drafts."""
  shape, terms = (setup.rows, setup.terms.gamma), setup.terms
  choose = lambda: np.sort(rng.choice(terms.vocab_size, terms.kept, replace=False))
  kept = np.array([choose() for _ in range(np.prod(shape))]).astype(int)
  weights = rng.integers(0, 2**16, (*shape, terms.kept))
  tokens = rng.integers(0, terms.vocab_size, shape)
  return Drafts(tokens, kept.reshape(weights.shape), weights)


def ask_of(setup, rng):
  """Any question; zeros where it says nothing."""
  live = rng.random(setup.rows) < 0.7
  lengths = rng.integers(1, setup.slots + 1, setup.rows)
  known = rng.integers(0, lengths + 1)
  places = np.arange(setup.slots)
  is_new = (places >= known[:, None]) & (places < lengths[:, None])
  tokens = lambda size: rng.integers(0, setup.terms.vocab_size, (setup.rows, size))
  shape = setup.rows, setup.terms.gamma, setup.terms.draws
  uniforms = rng.integers(0, 2**24, shape) * np.float32(2.0**-24)
  return Ask(
    live,
    known * live,
    lengths * live,
    tokens(setup.inputs) * ((known == 0) & live)[:, None],
    tokens(setup.slots) * (is_new & live[:, None]),
    uniforms * live[:, None, None],
  )


def assert_equal(one, other):
  for name, value in dataclasses.asdict(one).items():
    np.testing.assert_array_equal(value, getattr(other, name), name)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SETUPS))
def test_what_goes_in_comes_out(seed, setup):
  rng = np.random.default_rng(seed)
  ask, drafts = ask_of(setup, rng), drafts_of(setup, rng)
  assert_equal(ask, Ask.unpacked(ask.packed(setup), setup))
  every = np.ones(setup.rows, bool)
  assert_equal(drafts, Drafts.unpacked(drafts.packed(setup, every), setup, every))
  assert Setup.unpacked(setup.packed()) == setup


@pytest.mark.parametrize("setup", SETUPS, ids=range(len(SETUPS)))
def test_every_cut_and_every_addition_is_refused(setup):
  rng, every = np.random.default_rng(0), np.ones(setup.rows, bool)
  for message, read in (
    (ask_of(setup, rng).packed(setup), lambda x: Ask.unpacked(x, setup)),
    (
      drafts_of(setup, rng).packed(setup, every),
      lambda x: Drafts.unpacked(x, setup, every),
    ),
  ):
    for other in [message[:cut] for cut in range(len(message))] + [message + b"\0"]:
      with pytest.raises(ValueError):
        read(other)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.sampled_from(SETUPS))
def test_garbage_is_drafts_or_a_value_error(data, setup):
  every = np.ones(setup.rows, bool)
  for read in (
    lambda: Drafts.unpacked(data, setup, every),
    lambda: Ask.unpacked(data, setup),
    lambda: wire.beheaded(data),
    lambda: wire.opened(data),
  ):
    with contextlib.suppress(ValueError):
      read()


@pytest.mark.parametrize(
  ("change", "says"),
  [
    ({"tokens": 40}, "Expected tokens below 40, got 40"),
    ({"kept": 63}, "Expected tokens below 40, got 63"),
    ({"kept": 3}, "ascending, each once"),
  ],
)
def test_what_is_no_distribution_is_refused(change, says):
  setup, every = setup_of(), np.ones(3, bool)
  drafts = drafts_of(setup, np.random.default_rng(0))
  for name, value in change.items():
    getattr(drafts, name)[...] = value
  with pytest.raises(ValueError, match=says):
    Drafts.unpacked(drafts.packed(setup, every), setup, every)


@pytest.mark.parametrize("kept", [1, 8, 32, 0])
def test_a_reply_is_as_long_as_the_formula_says(kept):
  setup, every = setup_of(16, gamma=5, kept=kept, vocab_size=8064), np.ones(16, bool)
  reply = drafts_of(setup, np.random.default_rng(0)).packed(setup, every)
  each = probs_bits(kept or 8064, 8064)
  assert setup.reply_bits == each
  assert len(reply) == -(-16 * 5 * each // 8)


def test_with_its_head_a_reply_of_32_tokens_is_below_1100_bits():
  setup, one = setup_of(1, gamma=5, kept=32, vocab_size=32128), np.ones(1, bool)
  reply = drafts_of(setup, np.random.default_rng(0)).packed(setup, one)
  assert 8 * len(wire.head(0, 1) + reply) / 5 < 1100


def test_numbers_of_any_width():
  numbers = np.array([0, 1, 2**31, 2**32 - 1])
  data = packed([(numbers[:2], 1), (numbers, 32), (np.zeros((0, 3)), 7)])
  read = Reader(data)
  assert read.take((2,), 1).tolist() == [0, 1]
  assert read.take((2, 2), 32).ravel().tolist() == numbers.tolist()
  read.end()


@pytest.mark.parametrize(
  ("sizes", "says"),
  [
    ({"rows": 60000, "slots": 60000}, "at most 16777216 tokens, got 3600240000: 60000"),
    ({"at": Sampling(top_k=2**32)}, r"below 2\^32, got 4294967296 as .* \(TOPK"),
  ],
)
def test_a_session_that_is_too_large_is_refused(sizes, says):
  """Of others, as the command says them, see test_processes.py."""
  with pytest.raises(ValueError, match=says):
    setup_of(**sizes)


def test_the_largest_numbers_are_packed():
  setup = setup_of(kept=2**32 - 1, at=Sampling(top_k=2**32 - 1))
  assert Setup.unpacked(setup.packed()) == setup


def test_a_refusal_is_two_numbers():
  status, number, body = wire.beheaded(wire.refusal(5, 2**40, 2**30))
  assert (status, number) == (wire.Status.TOO_LARGE, 5)
  assert wire.refused(body) == (2**40, 2**30)
  for other in (body[:-1], body + b"\0"):
    with pytest.raises(ValueError, match="Expected 16 bytes of a refusal"):
      wire.refused(other)
