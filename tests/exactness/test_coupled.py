"""Coupled draws: every assignment of a noise with few values, against the oracle.

tests/test_table.py has every drafter with real noise.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core import noise
from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import DecodeState, row_keys
from tests import hash_model
from tests.exactness import driving
from tests.hash_model import HashModel, speculation

pytestmark = pytest.mark.slow

GRID = np.array([0.3, 3.5], np.float32)
FEW = 3
PLACES = 3
ASSIGNMENTS = np.array([*itertools.product(GRID, repeat=FEW)])  # For one place.


@pytest.mark.parametrize(
  ("sampling", "tree"),
  [
    (Sampling(coupled=True), Tree((0, 0, 1))),
    (Sampling(0.7, coupled=True), None),
    (Sampling(top_k=3, coupled=True), None),
    (Sampling(top_p=0.8, coupled=True), chain(2)),
  ],
  ids=["T=1", "T=0.7", "top-k", "top-p"],
)
def test_every_noise_gives_the_oracle_s_output_with_and_without_a_draft(
  sampling, tree, monkeypatch
):
  """3 tokens, 3 places and 2 values give 512 noises, one per row."""
  rows = len(ASSIGNMENTS) ** PLACES
  digits = np.stack(np.unravel_index(np.arange(rows), (len(ASSIGNMENTS),) * PLACES), 1)

  def uniforms_of_places(state, count):
    at = state.lengths[:, None] - 1 + jnp.arange(count)
    digit = jnp.take_along_axis(jnp.asarray(digits), at, axis=1, mode="clip")
    return jnp.repeat(digit[..., None] * 2.0**-24, LEVELS, axis=-1)

  def exponentials(uniforms, size):
    assert size == FEW
    return jnp.asarray(ASSIGNMENTS)[(uniforms[..., -1] * 2.0**24).astype(int)]

  monkeypatch.setattr(DecodeState, "uniforms_of_places", uniforms_of_places)
  monkeypatch.setattr(noise, "exponentials", exponentials)
  target, draft = (HashModel(seed, vocab_size=FEW) for seed in (5, 6))
  distribution = target.distribution(sampling)
  expected = np.zeros((rows, PLACES), int)
  for row, places in enumerate(digits):
    output = ()
    for place in places:
      if 1 not in output:
        output += (int(np.argmax(distribution(output) / ASSIGNMENTS[place])),)
    expected[row, : len(output)] = output
  keys = row_keys(jax.random.key(0), rows)
  plain = jax.jit(lambda: hash_model.plain(target, sampling, keys, PLACES))()
  np.testing.assert_array_equal(plain.tokens, expected)
  if tree is not None:
    drafter = driving.drafter_of(draft, tree)
    rule = RULES["coupled"]

    @jax.jit
    def run():
      started = speculation(target, drafter, rule, sampling, keys, PLACES)
      return generate(*started)

    decoded = run()
    np.testing.assert_array_equal(decoded.tokens, expected)
    assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()
