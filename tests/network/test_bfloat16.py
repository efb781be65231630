"""The native kernels in bfloat16 give float32 results, rounded once."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.network import products, rounded
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.ways import Model, assembled
from tests import networks
from tests.kernels import KINDS, matrix, needs_kernels, normal, not_finite
from tests.network.test_products import attention, masks
from tests.t5x_bridge import tiny
from tests.training.conftest import params_of

pytestmark = needs_kernels
NARROW = jnp.bfloat16
WIDE = jnp.float32


def narrow(x):
  return jnp.asarray(x, NARROW)


def widened(*arrays):
  return [jnp.asarray(x, WIDE) for x in arrays]


def assert_rounded(found, wide):
  """Asserts that `found` is the float32 result rounded to bfloat16."""
  assert found.dtype == NARROW
  np.testing.assert_array_equal(found, wide.astype(NARROW))


def run(function, *args):
  return jax.jit(function, static_argnums=0)("native", *args)


@pytest.mark.parametrize("inputs", [1, 5, 320])
def test_a_product_is_the_rounded_float32_product(inputs):
  x = narrow(normal(1, 140, inputs))
  kernels = [narrow(normal(column, inputs, column)) for column in (1, 7, 96, 832)]
  narrow_products = run(products.multiply, x, *kernels)
  wide = run(products.multiply, *widened(x[:128], *kernels))
  for found, exact, kernel in zip(narrow_products, wide, kernels, strict=True):
    assert_rounded(found[:128], exact)
    by_rows = run(products.multiply_by_rows, x[:128], kernel.T)
    same = run(products.multiply_by_rows, *widened(x[:128], kernel.T))
    assert_rounded(by_rows, same)


def test_rows_do_not_depend_on_the_number_of_rows():
  x = narrow(normal(2, 300, 64))
  kernel = narrow(normal(3, 64, 130))
  (together,) = run(products.multiply, x, kernel)
  for start, rows in ((0, 1), (7, 6), (100, 128), (11, 289)):
    (part,) = run(products.multiply, x[start : start + rows], kernel)
    np.testing.assert_array_equal(part, together[start : start + rows])


def test_float32_rows_multiply_a_bfloat16_matrix_without_rounding():
  x = normal(4, 9, 320)
  kernel = narrow(normal(5, 320, 130))
  for function, read in (
    (lambda *args: products.multiply(*args)[0], kernel),
    (products.multiply_by_rows, kernel.T),
  ):
    found = run(function, x, read)
    wide = run(function, *widened(x, read))
    assert found.dtype == WIDE
    np.testing.assert_array_equal(found, wide)


def test_nan_and_infinity_are_passed_on():
  x, kernel = not_finite()
  kernel[7, 129] = np.nan
  (found,) = run(products.multiply, narrow(x), narrow(kernel))
  expected = x @ kernel
  np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
  np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))


def test_norm_and_attention_are_rounded_float32_results():
  x = narrow(normal(7, 3, 9, 65))
  scale = narrow(normal(8, 65))
  wide = run(products.normalize, *widened(x, scale))
  assert_rounded(run(products.normalize, x, scale), wide)
  for width in (4, 6, 64, 65):
    inputs = [narrow(y) for y in (*attention(width), masks(2, 3, 4, 21))]
    wide = run(products.attend, *widened(*inputs))
    assert_rounded(run(products.attend, *inputs), wide)


@pytest.mark.parametrize(("bits", "group"), KINDS)
def test_a_product_with_rounded_weights_is_the_rounded_float32_product(bits, group):
  x = narrow(normal(9, 40, 330))
  unpacked = matrix(normal(1, 330, 70), bits, group)
  packed = matrix(normal(1, 330, 70), bits, group, layout="panels")
  (found,) = run(rounded.multiply, x, packed)
  (wide,) = run(rounded.multiply, *widened(x), packed)
  assert_rounded(found, wide)
  (plain,) = jax.jit(rounded.multiply, static_argnums=0)("xla", *widened(x), unpacked)
  np.testing.assert_allclose(wide, plain, atol=0.02 * float(jnp.abs(plain).max()))


T5_1_1 = dataclasses.replace(tiny.config(2, 64, 40), head_dim=32, dtype="bfloat16")
RELU = dataclasses.replace(T5_1_1, mlp_activations=("relu",))
CONFIGS = {
  "t5 1.1": T5_1_1,
  "t5 1.0": dataclasses.replace(RELU, logits_via_embedding=True),
  "int8": dataclasses.replace(RELU, weights="int8"),
  "float32 scores": dataclasses.replace(RELU, float32_attention_logits=True),
}
INPUTS = np.random.default_rng(0).integers(2, 40, (24, 9))
ROOM = 14


def model(config, dtype, seed=0):
  network = network_for(config)
  params = jax.tree.map(lambda x: x.astype(dtype), networks.sharp(network, seed))
  if rounding := rounded.of_weights(config):
    rounded_params = rounded.within(params, rounding(params))
    return Model(network, rounded_params, restore=lambda: params)
  return Model(network, params)


def outputs(target, batch, sampling=GREEDY, draft=None, drafter=None, **words):
  """Decodes the inputs in batches of a fixed size and returns the outputs."""
  decoder, params = assembled(target, draft, drafter, **words)
  keys = jax.random.split(jax.random.key(0), len(INPUTS))

  @jax.jit
  def decode(inputs, keys):
    return decoder.decode(params, inputs, keys, sampling, ROOM, 1).tokens

  batches = [slice(i, i + batch) for i in range(0, len(INPUTS), batch)]
  return np.concatenate([decode(INPUTS[rows], keys[rows]) for rows in batches])


@pytest.mark.parametrize(
  ("name", "dtype"),
  [
    ("t5 1.1", NARROW),
    ("int8", NARROW),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (("t5 1.0", NARROW), ("float32 scores", NARROW), ("t5 1.1", WIDE))
    ),
  ],
)
def test_outputs_depend_on_neither_draft_nor_batch(name, dtype):
  """The outputs of float32 parameters do not depend on draft and batch either."""
  target = model(CONFIGS[name], dtype)
  draft = model(CONFIGS["t5 1.1"], NARROW, seed=1)
  expected = outputs(target, 12)
  assert len(np.unique(expected, axis=0)) > 10
  np.testing.assert_array_equal(outputs(target, 1), expected)
  drafters = {
    "draft": (draft, DraftModel(draft.network, 5)),
    "auto": (draft, None),
    "itself": (None, Quantized(4, 32, gamma=3)),
  }
  for name, (draft_model, drafter) in drafters.items():
    found = outputs(target, 12, draft=draft_model, drafter=drafter)
    np.testing.assert_array_equal(found, expected, err_msg=name)


def test_xla_s_products_give_different_logits():
  """XLA gives different bfloat16 logits, so the tests above see the native kernels."""
  config = CONFIGS["t5 1.1"]
  target = model(config, NARROW)
  by_xla = dataclasses.replace(config, products="xla")
  other = Model(network_for(by_xla), target.params)
  assert not np.array_equal(scores(target), scores(other))
  np.testing.assert_allclose(scores(target), scores(other), atol=2)


def scores(target):
  inputs = INPUTS[:4]
  tokens = jnp.ones((4, 3), jnp.int32)
  apply = jax.jit(target.network.apply, static_argnames="enable_dropout")
  params = {"params": target.params}
  return np.asarray(apply(params, inputs, tokens, tokens, enable_dropout=False))


@pytest.mark.parametrize("kind", ["parallel", "eagle"])
def test_drafting_layers_read_float32_features_in_bfloat16(kind):
  target = model(CONFIGS["t5 1.1"], NARROW)
  config = HeadsConfig.of(target.network.config, 3, kind=kind, dtype="bfloat16")
  draft = Model(network_for(config), params_of(network_for(config)))
  expected = outputs(target, 12)
  np.testing.assert_array_equal(outputs(target, 12, draft=draft, gamma=2), expected)
