"""Weights in few bits: rounding and products."""

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network import rounded
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.rounded import Rounding
from tests.kernels import KINDS, matrix, needs_kernels, normal, not_finite
from tests.network.kinds import T5_1_0
from tests.t5x_bridge import tiny, tiny_gpt
from tests.training.conftest import shapes_of

pytestmark = pytest.mark.slow


def product(x, *kernels, choice="xla"):
  return jax.jit(rounded.multiply, static_argnums=0)(choice, x, *kernels)


def unrounded(matrix, inputs, choice="xla"):
  """Returns the matrix that a rounded matrix stands for."""
  return np.asarray(product(np.eye(inputs, dtype=np.float32), matrix, choice=choice)[0])


@pytest.mark.parametrize("group", [0, 8, 32])
@pytest.mark.parametrize("bits", [8, 4])
def test_weights_are_off_by_at_most_half_a_step(bits, group):
  inputs = 70
  columns = 37
  kernel = normal(0, inputs, columns) * np.geomspace(0.01, 100, columns, dtype="f")
  kernel[:, 2] = 0
  found = unrounded(matrix(kernel, bits, group), inputs)
  assert not found[:, 2].any()
  for first in range(0, inputs, group or inputs):
    part = slice(first, first + (group or inputs))
    step = np.abs(kernel[part]).max(axis=0) / (2 ** (bits - 1) - 1)
    # The scale itself is rounded to 8 bits.
    assert (
      np.abs(found - kernel)[part] <= step * (0.5 + 2.0**-8 * 2 ** (bits - 1))
    ).all()


def names(config, rounding):
  """Returns the paths of the rounded matrices and the parameters of a network."""
  params = tiny.drawn(config)
  flat = flax.traverse_util.flatten_dict(rounding(params), sep="/")
  return {name.rpartition("/")[0] for name in flat}, params


def test_rounding_covers_every_matrix_or_the_decoder_s_matrices():
  found, params = names(tiny.TARGET, Rounding())
  every = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  kernels = {name for name in every if name.endswith("kernel")}
  assert found == kernels
  input_parts = ("encoder/", "decoder_attention/key", "decoder_attention/value")
  found, _ = names(tiny.TARGET, Rounding(whole=("input",)))
  assert found == {x for x in kernels if not any(part in x for part in input_parts)}


def test_tied_embeddings_and_decoder_only_networks_are_rounded():
  assert "token_embedder/logits" in names(T5_1_0, Rounding())[0]
  found, _ = names(tiny_gpt.TARGET, Rounding(whole=("self_0",)))
  assert "decoder/layers_0/mlp/wo/kernel" in found
  assert "decoder/layers_0/self_attention/query/kernel" not in found
  assert ("decoder/token_embedder/logits" in found) != (
    "decoder/logits_dense/kernel" in found
  )
  assert "token_embedder/logits" not in names(T5_1_0, Rounding(whole=("logits",)))[0]


def test_rounded_matrices_keep_their_axes():
  params = Rounding(4, 8)(tiny.drawn(tiny.TARGET))
  axes = shapes_of(network_for(tiny.TARGET))["params_axes"]
  axes = rounded.axes_of(params, axes)
  kernel = axes["decoder"]["layers_0"]["mlp"]["wo"]["kernel"]
  assert kernel["codes_axes"].names == ("mlp", "embed")
  assert kernel["scales_axes"].names == (None, "embed")
  assert len(jax.tree.leaves(params)) == len(flax.traverse_util.flatten_dict(axes))


def test_bytes_are_counted():
  kernel = normal(0, 64, 10)
  assert rounded.size(matrix(kernel)) == 640 + 20
  # On CPU, XLA's 4-bit codes take a byte.
  assert rounded.size(matrix(kernel, 4, 32)) == 640 + 40
  assert rounded.size(jnp.zeros((64, 10), jnp.int4)) == 320


def test_a_string_of_names_is_refused():
  with pytest.raises(ValueError, match="whole must be names"):
    Rounding(8, 0, "logits")


# ---- Native products equal float64, row by row. ----

ROWS = (1, 2, 3, 4, 7, 8, 9, 130)
COLUMNS = (1, 7, 16, 37, 832)


def ours(x, *kernels):
  return product(x, *kernels, choice="native")


def matrices(inputs, bits, group, **settings):
  kernels = [normal(columns, inputs, columns) for columns in COLUMNS]
  return [matrix(kernel, bits, group, **settings) for kernel in kernels]


def rounded_rows(x, group):
  """Returns rows rounded to 8 bits with a scale per group, as in the products."""
  found = np.zeros(x.shape)
  size = group or max(x.shape[1], 1)
  for first in range(0, x.shape[1], size):
    part = x[:, first : first + size].astype(np.float64)
    step = np.abs(part).max(axis=1, keepdims=True) / 127
    codes = np.round(part / np.where(step > 0, step, 1))
    found[:, first : first + size] = codes * step
  return found


@needs_kernels
@pytest.mark.parametrize(
  ("kind", "inputs"),
  [*((kind, 330) for kind in KINDS), ((4, 32), 5), ((8, 0), 1)],
)
def test_a_row_equals_float64_and_does_not_depend_on_other_rows(kind, inputs):
  bits, group = kind
  x = normal(1, max(ROWS), inputs)
  kernels = matrices(inputs, bits, group, layout="panels")
  together = ours(x, *kernels)
  for rows in ROWS:
    for found, expected in zip(ours(x[-rows:], *kernels), together, strict=True):
      np.testing.assert_array_equal(found, expected[-rows:])
  for found, kernel in zip(together, kernels, strict=True):
    np.testing.assert_array_equal(ours(x, kernel)[0], found)
    exact = unrounded(kernel, inputs).astype(np.float64)
    scale = np.abs(x) @ np.abs(exact)
    # A number halfway between codes may be rounded up or down.
    off = np.abs(found - rounded_rows(x, group) @ exact) / scale
    assert np.median(off) < 1e-6
    assert off.max() < 1e-2
    assert np.abs(found - x @ exact).max() <= 0.01 * scale.max()


@needs_kernels
@pytest.mark.parametrize(("bits", "group"), [(8, 0), (4, 32)])
def test_packing_does_not_change_codes(bits, group):
  for packed, plain in zip(
    matrices(70, bits, group, layout="panels"), matrices(70, bits, group), strict=True
  ):
    np.testing.assert_array_equal(unrounded(packed, 70), unrounded(plain, 70))
    assert packed["scales"].dtype == "bfloat16"


@needs_kernels
def test_products_of_no_rows_are_empty():
  found = ours(normal(0, 0, 64), *matrices(64, 8, 32, layout="panels"))
  assert [y.shape for y in found] == [(0, columns) for columns in COLUMNS]


@needs_kernels
@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_nan_and_infinity_are_passed_on(bits, group):
  x, weights = not_finite()
  kernel = matrix(weights, bits, group, layout="panels")
  x[4] = 0
  found = np.asarray(ours(x, kernel)[0])
  assert np.isnan(found[1:4]).all()
  np.testing.assert_array_equal(found[4], 0)
  assert np.isfinite(found[[0, 5]]).all()


@needs_kernels
@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_products_are_right_for_rows_of_any_size(size):
  x = normal(7, 3, 64) * np.float32(size)
  kernel = matrix(normal(8, 64, 20), layout="panels")
  expected = x @ unrounded(kernel, 64)
  np.testing.assert_allclose(ours(x, kernel)[0], expected, atol=0.05 * 8 * size)
