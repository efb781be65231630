"""Native products, norms and attention equal float64, alone and in programs."""

import dataclasses
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network import products
from specdec_t5x.network.functional import network_for
from specdec_t5x.network.products import (
  MASKED,
  attend,
  multiply,
  multiply_by_rows,
  normalize,
)
from tests import networks, processes
from tests.kernels import needs_kernels, normal, not_finite
from tests.network import kinds

pytestmark = [pytest.mark.slow, needs_kernels]
ROWS = (*range(1, 10), 16, 33, products.MAX_ROWS)
INPUTS = (1, 5, 320)
COLUMNS = (1, 7, 96, 130, 832)
BATCH = 2
HEADS = 3
SLOTS = 21


def ours(x, *kernels):
  return jax.jit(multiply, static_argnums=0)("native", x, *kernels)


def by_rows(x, *kernels):
  """Like `ours`, with transposed kernels."""
  return _by_rows(x, *(np.ascontiguousarray(kernel.T) for kernel in kernels))


@jax.jit
def _by_rows(x, *kernels):
  return [multiply_by_rows("native", x, kernel) for kernel in kernels]


EITHER = pytest.mark.parametrize("product", [ours, by_rows])


def matrices(inputs):
  return [normal(column, inputs, column) for column in COLUMNS]


def assert_of_float64(found, x, kernel):
  exact = x.astype(np.float64) @ kernel
  scale = np.abs(x).astype(np.float64) @ np.abs(kernel)
  np.testing.assert_array_less(np.abs(np.asarray(found) - exact) / scale, 1e-6)


@EITHER
@pytest.mark.parametrize("inputs", INPUTS)
def test_a_row_equals_float64_and_does_not_depend_on_other_rows(inputs, product):
  x = normal(1, products.MAX_ROWS, inputs)
  kernels = matrices(inputs)
  together = product(x, *kernels)
  for found, kernel in zip(together, kernels, strict=True):
    assert_of_float64(found, x, kernel)
  for rows in ROWS:
    for start in (0, 5 if rows + 5 <= len(x) else 0):
      part = product(x[start : start + rows], *kernels)
      for found, expected in zip(part, together, strict=True):
        np.testing.assert_array_equal(found, expected[start : start + rows])
  order = np.random.default_rng(0).permutation(len(x))
  for found, expected in zip(product(x[order], *kernels), together, strict=True):
    np.testing.assert_array_equal(found, expected[order])


def test_a_row_does_not_depend_on_the_number_of_matrices_or_leading_axes():
  x = normal(2, 9, 320)
  kernels = matrices(320)
  for kernel, expected in zip(kernels, ours(x, *kernels), strict=True):
    np.testing.assert_array_equal(ours(x, kernel)[0], expected)
    for _ in range(5):
      np.testing.assert_array_equal(ours(x, *kernels[::-1], kernel)[-1], expected)
    with_axes = ours(x.reshape(3, 3, 320), kernel)[0]
    np.testing.assert_array_equal(with_axes.reshape(expected.shape), expected)


@EITHER
def test_nan_and_infinity_are_passed_on(product):
  x, kernel = not_finite()
  kernel[7, 129] = np.nan
  found = product(x, kernel)[0]
  expected = x @ kernel
  np.testing.assert_allclose(found, expected, atol=1e-5)  # NaN and infinities alike.
  assert np.isfinite(found[[0, 4, 5], :129]).all()


LARGE = 1030, 1027  # Above a million numbers the order of reads changes.


@EITHER
@pytest.mark.parametrize("rows", [1, 4, 8, 9])
def test_columns_of_a_large_matrix_equal_separate_columns(rows, product):
  x = normal(7, rows, LARGE[0])
  kernel = normal(8, *LARGE)
  found = product(x, kernel)[0]
  for start in (0, 416, 832):
    alone = product(x, kernel[:, start : start + 416])[0]
    np.testing.assert_array_equal(found[:, start : start + 416], alone)
  assert_of_float64(found, x, kernel)


@EITHER
@pytest.mark.parametrize(("rows", "inputs"), [(0, 64), (5, 0), (0, 0)])
def test_empty_products_are_empty_or_zero(rows, inputs, product):
  x = normal(0, rows, inputs)
  kernels = matrices(inputs)
  for found, kernel in zip(product(x, *kernels), kernels, strict=True):
    np.testing.assert_array_equal(found, x @ kernel)
  assert normed(x, np.ones(inputs, np.float32)).shape == x.shape


# ---- Layer norm. ----


def normed(x, scale):
  return np.asarray(jax.jit(normalize, static_argnums=0)("native", x, scale))


@pytest.mark.parametrize("width", [1, 5, 64, 1027])
def test_layer_norm_equals_float64(width):
  x = normal(10, 3, 9, width)
  scale = normal(11, width)
  exact = x.astype(np.float64)
  exact /= np.sqrt(np.mean(exact**2, axis=-1, keepdims=True) + 1e-6)
  found = normed(x, scale)
  np.testing.assert_allclose(found, exact * scale, rtol=1e-6)
  np.testing.assert_array_equal(found[1, 2:4], normed(x[1, 2:4], scale))
  x[1, 5, 0] = np.nan
  x[2] = 0
  with_nan = normed(x, scale)
  assert np.isnan(with_nan[1, 5]).all()
  np.testing.assert_array_equal(with_nan[0], found[0])
  np.testing.assert_array_equal(with_nan[2], 0)


# ---- Attention. ----


def attention(width, queries=4, seed=0):
  shapes = [(BATCH, queries, HEADS, width)] + [(BATCH, HEADS, SLOTS, width)] * 2
  return [normal(seed + i, *shape) for i, shape in enumerate(shapes)]


def ours_of(query, key, value, bias):
  return np.asarray(
    jax.jit(attend, static_argnums=0)("native", query, key, value, bias)
  )


def exactly(query, key, value, bias):
  """Returns attention in float64; masked slots have zero weight."""
  query, key, value, bias = (x.astype(np.float64) for x in (query, key, value, bias))
  scores = np.einsum("bqhk,bhsk->bhqs", query, key) + bias
  weights = np.exp(scores - scores.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  return np.einsum("bhqs,bhsk->bqhk", weights, value)


def masks(*shape, seed=9):
  """Returns biases that mask two thirds of the slots, never slot 2."""
  hidden = np.random.default_rng(seed).random(shape) < 2 / 3
  hidden[..., 2] = False
  return np.where(hidden, np.float32(MASKED), 0) + normal(seed, *shape)


@pytest.mark.parametrize(
  ("width", "shape"),
  [
    (4, (BATCH, HEADS, 4)),
    (6, (BATCH, 1, 1)),
    (64, (BATCH, HEADS, 1)),
    (4, (1, HEADS, 1)),
    (6, (1, HEADS, 4)),
    (64, (1, 1, 4)),
    (4, (1, 1, 1)),
  ],
)
def test_attention_equals_float64(width, shape):
  """Biases may be separate or shared between rows, heads and queries."""
  inputs = attention(width)
  for bias in (normal(8, *shape, SLOTS), masks(*shape, SLOTS)):
    np.testing.assert_allclose(
      ours_of(*inputs, bias), exactly(*inputs, bias), atol=1e-5
    )


def test_masked_slots_have_no_influence():
  """Masked slots have no influence, even with NaN; in XLA zero times NaN is NaN."""
  query, key, value = attention(6)
  bias = masks(1, 1, 1, SLOTS)
  expected = ours_of(query, key, value, bias)
  for junk in (1e30, np.inf, np.nan):
    hidden = bias[0, 0, 0] < MASKED / 2
    key[:, :, hidden] = junk
    value[:, :, hidden] = junk
    np.testing.assert_array_equal(ours_of(query, key, value, bias), expected)
  fewer = [x[:, :, ~hidden] for x in (key, value)]
  np.testing.assert_array_equal(ours_of(query, *fewer, bias[..., ~hidden]), expected)


def test_attention_of_a_query_does_not_depend_on_other_queries():
  query, key, value = attention(6, queries=9)
  bias = masks(BATCH, HEADS, 9, SLOTS)
  together = ours_of(query, key, value, bias)
  for _ in range(5):
    np.testing.assert_array_equal(ours_of(query, key, value, bias), together)
  for i in range(9):
    alone = ours_of(query[:, i : i + 1], key, value, bias[:, :, i : i + 1])
    np.testing.assert_array_equal(alone, together[:, i : i + 1])
  last = ours_of(query[1:], key[1:], value[1:], bias[1:])
  np.testing.assert_array_equal(last, together[1:])


@pytest.mark.parametrize("size", [1e4, -1e4, 3e38])
def test_large_scores_do_not_overflow(size):
  query, key, value = attention(4)
  key[:] = 0
  bias = np.zeros((1, 1, 1, SLOTS), np.float32)
  bias[..., 5] = size
  expected = value[:, :, 5] if size > 0 else np.delete(value, 5, 2).mean(2)
  found = ours_of(query, key, value, bias)
  np.testing.assert_allclose(found, np.stack([expected] * 4, 1), atol=1e-6)


@pytest.mark.parametrize("at", ["query", "key", "value", "bias"])
def test_attention_passes_nan_on_like_xla(at):
  inputs = dict(zip(("query", "key", "value"), attention(6), strict=True))
  inputs["bias"] = normal(3, BATCH, HEADS, 4, SLOTS)
  inputs[at][1, 2, 0] = np.nan
  found = ours_of(**inputs)
  expected = products.xla_attend(**inputs)
  np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
  assert np.isnan(found).any()
  assert not np.isnan(found).all()


def test_attention_with_every_slot_masked_is_the_mean_and_a_bias_of_nan_is_no_mask():
  inputs = attention(6)
  bias = np.full((1, 1, 1, SLOTS), MASKED, np.float32)
  found = ours_of(*inputs, bias)
  np.testing.assert_allclose(found, products.xla_attend(*inputs, bias), atol=1e-6)
  np.testing.assert_allclose(found[0, 0], inputs[2][0].mean(axis=1), atol=1e-6)
  bias[..., 3:6] = 0
  for slots in (0, 20, slice(None)):
    with_nan = bias.copy()
    with_nan[..., slots] = np.nan
    assert np.isnan(ours_of(*inputs, with_nan)).all()


# ---- In whole networks and programs. ----


def uses_kernels(fun, *args):
  """Returns whether a program for this machine calls our kernels."""
  return "specdec_" in jax.jit(fun).lower(*args).as_text()


def of_choice(choice):
  """Returns a differentiable function of norm, products and attention."""

  def run(x, scale, kernels, inputs):
    normed = products.normalize(choice, x, scale)
    parts = products.multiply(choice, normed, *kernels)
    mixed = products.attend(choice, *inputs)
    return sum(jnp.sin(part).sum() for part in parts) + jnp.cos(mixed).sum()

  return run


ARGUMENTS = (
  normal(0, 5, 64),
  normal(3, 64),
  [normal(1, 64, 7), normal(2, 64, 130)],
  [*attention(6), masks(1, 1, 4, SLOTS)],
)


def test_gradients_equal_xla():
  found, expected = (
    jax.jit(jax.grad(of_choice(choice), argnums=(0, 1, 2, 3)))(*ARGUMENTS)
    for choice in ("auto", "xla")
  )
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(one, other, atol=1e-6)
  assert uses_kernels(of_choice("auto"), *ARGUMENTS)
  assert not uses_kernels(of_choice("xla"), *ARGUMENTS)
  assert not uses_kernels(jax.grad(of_choice("auto")), *ARGUMENTS)


@pytest.mark.parametrize(
  ("rows", "terms", "sign"),
  [(1, 1024, np.abs), (3, 10240, np.array), (8, 10240, np.abs), (8, 1024, np.array)],
)
def test_long_sums_equal_float64(rows, terms, sign):
  x = sign(normal(0, rows, terms))
  kernel = sign(normal(1, terms, 130))
  assert_of_float64(ours(x, kernel)[0], x, kernel)


@pytest.mark.parametrize(("slots", "sign"), [(1024, np.array), (10240, np.abs)])
def test_attention_to_many_slots_equals_float64(slots, sign):
  value = sign(normal(0, 1, 1, slots, 64))
  query = np.zeros((1, 3, 1, 64), np.float32)
  key = normal(1, *value.shape)
  bias = normal(2, 1, 1, 1, slots)
  exact = exactly(query, key, value, bias)
  scale = exactly(query, key, np.abs(value), bias)
  found = ours_of(query, key, value, bias)
  np.testing.assert_array_less(np.abs(found - exact) / scale, 1e-6)


def test_many_rows_and_other_dtypes_use_xla():
  many = normal(0, products.MAX_ROWS + 1, 5)

  def run(x):
    return products.multiply("auto", x, jnp.ones((5, 7), x.dtype))

  for x in (many, many[:2].astype(np.float16)):
    assert not uses_kernels(run, x)
  # XLA's bfloat16 products are slower for any number of rows.
  assert uses_kernels(run, many.astype(jnp.bfloat16))


def test_concurrent_calls_are_right_and_do_not_deadlock():
  """Concurrent calls finish, although the calls share the threads of a pool."""
  program = """
    import concurrent.futures, jax, jax.numpy as jnp
    from specdec_t5x.network import products

    @jax.jit
    def run(x, kernel):  # Its calls need not wait for each other: the pool runs them.
      rows = [x + i for i in range(16)]
      for _ in range(8):
        rows = [jnp.tanh(products.multiply("native", y, kernel)[0]) for y in rows]
      return sum(rows)

    x, kernel = (jax.random.normal(jax.random.key(n), (n, 512)) for n in (8, 512))
    expected = run(x, kernel)

    def use(_):
      return all((run(x, kernel) == expected).all() for _ in range(20))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
      assert all(threads.map(use, range(4)))
  """
  settings = {"PJRT_NPROC": "2", "NPROC": "2"}  # Two threads in the pool.
  processes.printed("-c", textwrap.dedent(program), timeout=600, **settings)


def test_a_network_gives_xla_s_logits_and_a_block_has_the_bits_of_single_tokens():
  tokens = kinds.random_tokens(1, 8)
  blocks = {}
  for choice in ("xla", "native"):
    module = network_for(dataclasses.replace(kinds.T5_1_1, products=choice))
    params = kinds.variables(kinds.T5_1_1)["params"]
    extend, cache = networks.start(module, params, kinds.INPUTS, num_slots=20)
    blocks[choice], _, _ = extend(cache, tokens)
  np.testing.assert_allclose(blocks["native"], blocks["xla"], atol=1e-5)
  for i in range(8):
    one, _, cache = extend(cache, tokens[:, i : i + 1])
    np.testing.assert_array_equal(one[:, 0], blocks["native"][:, i])
