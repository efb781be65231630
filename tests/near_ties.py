"""A tiny pair with a target that separates most tokens only by rounding."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.transformer import Transformer
from tests.t5x_bridge import tiny

# The sums are wide enough to round, in bfloat16 too. XLA's products round blocks of
# different widths differently; native products compute every row alike.
CONFIG = dataclasses.replace(
  tiny.TARGET, emb_dim=64, head_dim=32, mlp_dim=192, products="xla"
)


def with_families(params, dtype, seed=0):
  """Makes most output columns a vector or the negative vector, up to some epsilons.

  One of the two families has the best tokens for any features.
  """
  kernel = np.array(params["decoder"]["logits_dense"]["kernel"], np.float32)
  nudge = np.random.default_rng(seed).uniform(-1, 1, kernel[:, 4:].shape)
  sign = np.where(np.arange(kernel.shape[1] - 4) % 2, -1, 1)
  kernel[:, 4:] = 2 * kernel[:, 4:5] * sign * (1 + 2 * jnp.finfo(dtype).eps * nudge)
  kernel[:, :4] /= 8
  logits_dense = {"kernel": jnp.asarray(kernel)}
  return {**params, "decoder": {**params["decoder"], "logits_dense": logits_dense}}


@functools.cache
def target(dtype):
  network = Transformer(dataclasses.replace(CONFIG, dtype=dtype))
  return network, with_families(tiny.state(network, seed=1).params, dtype)


def pair(dtype, gamma):
  """Returns a decoder and parameters; the draft agrees with the target at times."""
  network, params = target(dtype)
  rng = np.random.default_rng(0)

  def noisy(x):
    return x * (1 + 0.02 * rng.normal(size=x.shape).astype(np.float32))

  draft = jax.tree.map(noisy, params)
  draft["decoder"]["logits_dense"] = params["decoder"]["logits_dense"]
  decoder = Decoder(network, DraftModel(network, gamma))
  return decoder, {"target": params, "draft": draft}


def inputs():
  tokens = np.random.default_rng(0).integers(3, 30, size=(6, 9))
  tokens[1, 4:], tokens[2, 1:] = 0, 0
  return jnp.asarray(tokens, jnp.int32)
