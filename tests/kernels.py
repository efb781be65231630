"""Matrices for the native kernels, and the mark of tests that need the kernels."""

import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.native import library
from specdec_t5x.network import certified
from specdec_t5x.network.rounded import Rounding

needs_kernels = pytest.mark.skipif(
  library.problem() is not None, reason=f"no kernels: {library.problem()}"
)
# Bits and group sizes of rounded weights.
KINDS = [(8, 0), (8, 32), (4, 0), (4, 32)]


def normal(seed, *shape):
  values = np.random.default_rng(seed).normal(size=shape)
  return values.astype(np.float32)


def not_finite():
  """Returns rows and a matrix; rows 1, 2 and 3 have NaN or an infinity."""
  x = normal(5, 6, 64)
  x[1, 3] = np.nan
  x[2, 63] = np.inf
  x[3, 0] = -np.inf
  return x, normal(6, 64, 130)


def matrix(kernel, bits=8, group=0, **settings):
  """Returns a matrix rounded like a decoder's projection to the vocabulary."""
  params = {"decoder": {"logits_dense": {"kernel": jnp.asarray(kernel)}}}
  return Rounding(bits, group, **settings)(params)["decoder"]["logits_dense"]["kernel"]


def screened(weights, tied=False):
  """Returns a projection to the vocabulary with the screen of a certified head."""
  weights = jnp.asarray(weights)
  params = {"decoder": {"logits_dense": {"kernel": weights}}}
  if tied:
    params = {"decoder": {}, "token_embedder": {"embedding": weights.T}}
  params = certified.within(params, certified.screen(params))
  if tied:
    return params["token_embedder"]["logits"]
  return params["decoder"]["logits_dense"]["kernel"]
