"""Blocks of the target are as wide as the drafts."""

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.decoding.loop import narrowest
from specdec_t5x.network.net import block_widths, extend_narrowly
from tests.hash_model import TokenCache


def test_the_narrowest_block_for_all_drafts_is_scored():
  assert block_widths(1) == (1, 2)
  assert block_widths(3) == (1, 2, 4)
  assert block_widths(7) == (1, 2, 4, 8)
  assert block_widths(9) == (1, 2, 4, 8, 10)

  def extend(cache, tokens):
    """Returns the block's width as logits, and the block's tokens as features."""
    wide = jnp.full((*tokens.shape, 3), float(tokens.shape[1]))
    return wide, tokens[..., None] * 1.0, cache

  block = jnp.array([[7, 0, 1, 2, 3, 4], [7, 5, 6, 7, 8, 9]])
  widths = block_widths(5)
  cache = TokenCache(jnp.zeros(2, int), block)
  score = jax.jit(
    lambda sizes: extend_narrowly(
      extend, cache, block, widths, narrowest(widths, sizes)
    )
  )
  for sizes, width in [((0, 0), 1), ((1, 0), 2), ((2, 1), 4), ((1, 3), 4), ((4, 5), 6)]:
    logits, features, _ = score(jnp.array(sizes))
    assert logits.shape == (2, 6, 3)
    np.testing.assert_array_equal(logits[:, :width], width)
    np.testing.assert_array_equal(logits[:, width:], 0)
    np.testing.assert_array_equal(features[:, :width, 0], block[:, :width])
