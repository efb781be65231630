"""Padding is -1, or in T5X's batches the 0s after the last nonzero token."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network import functional
from specdec_t5x.network.inputs import input_lengths, input_mask, without_padding
from tests import networks
from tests.t5x_bridge import tiny

# (row, length of the input).
ROWS = {
  "T5X's": ([5, 9, 1, 0, 0], 3),
  "an unknown piece": ([5, 0, 1, 0, 0], 3),
  "ours": ([5, 9, 1, -1, -1], 3),
  "ours, ending with 0": ([5, 9, 0, -1, -1], 3),
  "ours, of zeros": ([0, 0, -1, -1, -1], 2),
  "full": ([5, 9, 8, 7, 1], 5),
  "empty": ([0, 0, 0, 0, 0], 0),
  "ours, empty": ([-1, -1, -1, -1, -1], 0),
}


@pytest.mark.parametrize("kind", ROWS)
def test_the_mask_ends_with_the_input(kind):
  row, length = ROWS[kind]
  tokens = jnp.array([row])
  assert input_mask(tokens)[0].tolist() == [True] * length + [False] * (5 - length)
  assert input_lengths(tokens).tolist() == [length]
  assert (without_padding(tokens) >= 0).all()
  assert input_lengths(tokens[:, :0]).tolist() == [0]


def test_zeros_inside_an_input_are_read_and_padding_is_ignored():
  network = functional.network_for(tiny.TARGET)
  variables = {"params": networks.drawn(tiny.TARGET, 3)}

  def encoded(row):
    tokens = jnp.array([row])
    found = network.apply(variables, tokens, enable_dropout=False, method="encode")
    return np.asarray(found[0])

  alone = encoded([5, 0, 9, 1])
  for padding in ([0, 0], [-1, -1]):
    np.testing.assert_allclose(encoded([5, 0, 9, 1, *padding])[:4], alone, atol=1e-5)
  assert np.abs(encoded([5, 9, 1])[-1] - alone[-1]).max() > 1e-3
  last = encoded([5, 9, 0, -1, -1])
  np.testing.assert_allclose(last[:3], encoded([5, 9, 0, -1])[:3], atol=1e-5)
  assert np.abs(last[1] - encoded([5, 9, -1, -1, -1])[1]).max() > 1e-3


def test_a_short_input_in_a_wide_batch_gives_the_same_logits():
  """The input is encoded at a quarter of the width, and the caches are widened."""
  network = functional.network_for(tiny.TARGET)
  params = networks.drawn(tiny.TARGET, 3)
  row = [5, 9, 8, 1]
  logits = []
  for width in (len(row), 64):
    inputs = jnp.array([row + [0] * (width - len(row))])
    extend, cache = networks.start(network, params, inputs, 4)
    logits.append(extend(cache, jnp.array([[3]]))[0])
  assert functional.encoder_widths(64)[0] == 16
  np.testing.assert_allclose(*logits, atol=1e-5)
