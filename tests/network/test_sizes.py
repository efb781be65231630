"""The published sizes of T5 1.1."""

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.network import sizes
from specdec_t5x.network.transformer import Transformer


# Parameters as published for T5 1.1, whose vocabulary is padded to 32,128.
@pytest.mark.parametrize(("size", "millions"), [("small", 77), ("base", 248)])
def test_a_size_has_its_published_number_of_parameters(size, millions):
  module, tokens = Transformer(sizes.t5_1_1(size)), jnp.ones((1, 1), jnp.int32)
  init = lambda key: module.init(key, *[tokens] * 3, enable_dropout=False)["params"]
  leaves = jax.tree.leaves(jax.eval_shape(init, jax.random.key(0)))
  assert round(sum(leaf.size for leaf in leaves) / 1e6) == millions


def test_random_parameters_are_of_the_networks_shapes_and_dtype():
  module = Transformer(sizes.t5_1_1("tiny", "bfloat16"))
  params = sizes.random_params(module, seed=0)
  assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}
  tokens = jnp.array([[5, 6]])
  logits = module.apply({"params": params}, *[tokens] * 3, enable_dropout=False)
  assert logits.shape == (1, 2, sizes.VOCAB_SIZE)
  assert jnp.isfinite(logits).all()
  assert logits.std() > 0.1


def test_an_unknown_size_is_refused():
  with pytest.raises(ValueError, match="Unknown size 'huge'"):
    sizes.t5_1_1("huge")
