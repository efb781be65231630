"""Our own products in whole networks and programs."""

import dataclasses
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.network import products
from specdec_t5x.network.functional import network_for
from tests import networks, processes
from tests.kernels import needs_kernels, normal
from tests.network import kinds
from tests.network.test_products import (
  SLOTS,
  assert_of_float64,
  attention,
  exactly,
  masks,
  ours,
  ours_of,
)


def uses_kernels(fun, *args):
  """Returns whether a program for this machine calls our kernels."""
  return "specdec_" in jax.jit(fun).lower(*args).as_text()


def of_choice(choice):
  """Returns norm, products and attention as a function of all that has derivatives."""

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


@needs_kernels
def test_derivatives_are_those_of_xla():
  found, expected = (
    jax.jit(jax.grad(of_choice(choice), argnums=(0, 1, 2, 3)))(*ARGUMENTS)
    for choice in ("auto", "xla")
  )
  for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    np.testing.assert_allclose(one, other, atol=1e-6)
  assert uses_kernels(of_choice("auto"), *ARGUMENTS)
  assert not uses_kernels(of_choice("xla"), *ARGUMENTS)
  assert not uses_kernels(jax.grad(of_choice("auto")), *ARGUMENTS)


@needs_kernels
def test_vmap_goes_over_either_operand():
  x, kernels = normal(0, 4, 5, 64), normal(1, 4, 64, 96)
  multiply = lambda x, w: products.multiply("native", x, w)[0]
  for axes, one, other in (
    ((0, 0), x, kernels),
    ((0, None), x, kernels[0]),
    ((None, 0), x[0], kernels),
  ):
    found = jax.jit(jax.vmap(multiply, axes))(one, other)
    np.testing.assert_allclose(found, one @ other, atol=1e-4)
  inputs, biases = attention(6), masks(3, 1, 1, 4, SLOTS)
  attend = lambda bias: products.attend("native", *map(jnp.asarray, inputs), bias)
  for found, bias in zip(jax.jit(jax.vmap(attend))(biases), biases, strict=True):
    np.testing.assert_array_equal(found, jax.jit(attend)(bias))


@needs_kernels
@pytest.mark.parametrize(
  ("rows", "terms", "sign"),
  [(1, 1024, np.abs), (3, 10240, np.array), (8, 10240, np.abs), (8, 1024, np.array)],
)
def test_long_sums_are_those_of_float64(rows, terms, sign):
  x, kernel = sign(normal(0, rows, terms)), sign(normal(1, terms, 130))
  assert_of_float64(ours(x, kernel)[0], x, kernel)


@needs_kernels
@pytest.mark.parametrize(("slots", "sign"), [(1024, np.array), (10240, np.abs)])
def test_attention_to_many_slots_is_that_of_float64(slots, sign):
  value = sign(normal(0, 1, 1, slots, 64))
  query, key = np.zeros((1, 3, 1, 64), np.float32), normal(1, *value.shape)
  inputs = query, key, value, normal(2, 1, 1, 1, slots)
  exact = exactly(*inputs)
  scale = exactly(*inputs[:2], np.abs(value), inputs[3])
  np.testing.assert_array_less(np.abs(ours_of(*inputs) - exact) / scale, 1e-6)


@needs_kernels
def test_many_rows_and_other_dtypes_are_left_to_xla():
  many = normal(0, products.MAX_ROWS + 1, 5)
  for x in (many, many[:2].astype(jnp.bfloat16), many[:2].astype(np.float16)):
    run = lambda x: products.multiply("auto", x, jnp.ones((5, 7), x.dtype))
    assert not uses_kernels(run, x)


@needs_kernels
def test_calls_side_by_side_do_not_wait_for_each_other_forever():
  """Each call hands parts to a pool whose threads other calls may occupy."""
  program = """
    import threading, jax, jax.numpy as jnp
    from specdec_t5x.network import products

    @jax.jit
    def run(x, kernel):  # Its calls need not wait for each other: the pool runs them.
      rows = [x + i for i in range(16)]
      for _ in range(8):
        rows = [jnp.tanh(products.multiply("native", y, kernel)[0]) for y in rows]
      return sum(rows)

    def use():
      for _ in range(20):
        run(jnp.ones((8, 512)), jnp.ones((512, 512))).block_until_ready()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
  """
  settings = {"PJRT_NPROC": "2", "NPROC": "2"}  # Of the pool's threads.
  processes.printed("-c", textwrap.dedent(program), timeout=600, **settings)


@pytest.fixture(scope="module")
def scorers():
  """Returns, of either products, `extend` and a cache of the same random network."""
  found = {}
  for choice in ("native", "xla"):
    module = network_for(dataclasses.replace(kinds.T5_1_1, products=choice))
    params = kinds.variables(kinds.T5_1_1)["params"]
    found[choice] = networks.start(module, params, kinds.INPUTS, num_slots=20)
  return found


@needs_kernels
def test_a_network_scores_alike_with_either_products(scorers):
  tokens = kinds.random_tokens(0, 5)
  (found, *_), (expected, *_) = (
    extend(cache, tokens) for extend, cache in scorers.values()
  )
  np.testing.assert_allclose(found, expected, atol=1e-5)


@needs_kernels
def test_a_block_has_the_bits_of_single_tokens(scorers):
  extend, cache = scorers["native"]
  tokens = kinds.random_tokens(1, 8)
  whole, _, _ = extend(cache, tokens)
  for i in range(8):
    one, _, cache = extend(cache, tokens[:, i : i + 1])
    np.testing.assert_array_equal(one[:, 0], whole[:, i])
