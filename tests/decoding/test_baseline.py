"""The plain loop in blocks, as wide as the drafts, has the bits of speculation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab import differences
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import narrowest
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.net import block_widths
from tests import near_ties
from tests.t5x_bridge import tiny

LENGTH = 13
GAMMA = 3


def test_the_fillers_are_scored_in_the_compiled_program():
  # A compiler could drop fillers from the last products, which need a single row.
  network, params = near_ties.target("float32")
  inputs = near_ties.inputs()
  keys = row_keys(jax.random.key(0), 6)
  decoder = Decoder(network, block=4)

  @jax.jit
  def run(params):
    return decoder.decode(params, inputs, keys, GREEDY, LENGTH, 1).tokens

  text = run.lower({"target": params}).as_text()
  assert f"tensor<6x4x{tiny.VOCAB_SIZE}xf32>" in text
  assert "optimization_barrier" in text


@functools.cache
def run(kind):
  """Returns a run's tokens, logits and statistics as NumPy arrays.

  Most tokens of the run's target are near-ties.
  """
  decoder, params = near_ties.pair("float32", GAMMA)
  if kind != "speculative":
    decoder = Decoder(decoder.target, block=GAMMA + 1 if kind == "strict" else 1)
  program = jax.jit(lambda p, x: differences.record(decoder, p, x, 24, eos_id=1))
  decoded = program(params, near_ties.inputs())
  info = {name: np.asarray(x) for name, x in vars(decoded.statistics).items()}
  return np.asarray(decoded.tokens), np.asarray(decoded.observed), info


@pytest.mark.slow
def test_the_strict_baseline_has_speculations_bits():
  """tests/lab/test_differences.py tests bfloat16."""
  tokens, logits, plain = run("strict")
  found, others, speculative = run("speculative")
  np.testing.assert_array_equal(tokens, found)
  decided = np.arange(24) < plain["emitted"][:, None]
  assert decided.sum() > 60
  np.testing.assert_array_equal(logits[decided], others[decided])
  # Drafts were accepted in part, so the runs differ in their calls.
  assert (speculative["target_calls"] < plain["target_calls"]).any()
  assert 0 < speculative["accepted"].sum() < speculative["drafted"].sum()


def test_decoding_one_token_per_call_has_different_bits():
  # The test above would otherwise show nothing.
  tokens, logits, _ = run("plain")
  found, others, _ = run("speculative")
  same = (tokens == found).cumprod(axis=1) > 0
  assert not same.all()  # Some near-ties were decided differently.
  assert (logits[same] != others[same]).any()


# ---- Blocks as wide as the drafts. ----


def test_the_narrowest_block_for_all_drafts_is_chosen():
  assert block_widths(1) == (1, 2)
  assert block_widths(3) == (1, 2, 4)
  assert block_widths(7) == (1, 2, 4, 8)
  assert block_widths(9) == (1, 2, 4, 8, 10)
  widths = block_widths(5)
  for sizes, width in [((0, 0), 1), ((1, 0), 2), ((2, 1), 4), ((1, 3), 4), ((4, 5), 6)]:
    assert widths[int(narrowest(widths, jnp.array(sizes)))] == width
