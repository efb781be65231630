"""A certified head gives the largest logits of the full product, bit for bit."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.api import Model
from specdec_t5x.core.distributions import GREEDY, Sampling, certain_log_prob
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.native import library
from specdec_t5x.network import certified, products, rounded
from specdec_t5x.network.functional import network_for
from specdec_t5x.ways import assembled
from tests.drafters.test_quantized import INPUTS, ROOM, model
from tests.kernels import needs_kernels, normal, screened
from tests.network.kinds import GEMMA_2, T5_1_0
from tests.t5x_bridge import tiny, tiny_gpt

pytestmark = needs_kernels


def product(h, kernel, tied=False):
  """Returns h W from a certified head (a dict) or from plain weights."""
  if isinstance(kernel, dict):
    return np.asarray(
      jax.jit(certified.multiply, static_argnums=0)("native", h, kernel)
    )
  if tied:
    multiply = jax.jit(products.multiply_by_rows, static_argnums=0)
    return np.asarray(multiply("native", h, kernel.T))
  multiply = jax.jit(products.multiply, static_argnums=0)
  return np.asarray(multiply("native", h, kernel)[0])


def exact(h, weights, kernel=None, tied=False):
  """Checks the largest logit of every row and returns which logits are exact."""
  kernel = kernel or screened(weights, tied)
  found = product(h, kernel)
  full = product(h, weights, tied)
  np.testing.assert_array_equal(found.argmax(axis=1), full.argmax(axis=1))
  np.testing.assert_array_equal(found.max(axis=1), full.max(axis=1))
  return found == full


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
  ("inputs", "columns", "rows"),
  [(1, 7, 8), (5, 16, 2), (64, 37, 1), (330, 4000, 9), (330, 4000, products.MAX_ROWS)],
)
def test_the_largest_logit_of_a_row_equals_the_full_product(
  inputs, columns, rows, tied
):
  for seed in range(3):
    h = normal(seed, rows, inputs)
    weights = normal(seed + 9, inputs, columns)
    are_exact = exact(h, weights, tied=tied)
    if inputs == 330:
      assert are_exact.sum(axis=1).max() < 0.1 * columns  # Few columns are computed.


def test_ties_and_near_ties_are_decided_like_the_full_product():
  """Ties and near-ties are decided like the full product.

  The columns are equal or differ by an ulp of a weight.
  """
  for seed in range(20):
    draw = np.random.default_rng(seed)
    h = normal(seed, 4, 64)
    weights = normal(seed + 50, 64, 600) * np.float32(0.1)
    weights[:, ::3] = h[:1].T  # The largest logits of the first row.
    at = draw.integers(0, 64, 200), 3 * np.arange(200)
    moved = np.nextafter(weights[at], draw.choice([-9, 9], 200).astype(np.float32))
    weights[at] = np.where(draw.random(200) < 0.7, moved, weights[at])
    assert exact(h, weights)[0, ::3].all()


def misleading_weights():
  """Returns weights with two columns that the codes order wrongly.

  The codes of the columns are off by nearly the bound, in opposite directions. By the
  codes the first column is ahead by 56; by the weights the first is behind by 0.7.
  """
  codes = np.random.default_rng(0).integers(20, 40, 64).astype(np.float32)
  weights = np.zeros((64, 20), np.float32)
  weights[:, 3] = codes - 0.45
  weights[:, 11] = codes + 0.45
  weights[1:57, 11] -= 1
  weights[0, [3, 11]] = 127  # A scale of 1.
  return np.ones((1, 64), np.float32), weights


def misleading_features():
  """Returns features that mislead after rounding, with weights equal to the codes."""
  signs = np.where(np.arange(64) % 2, np.float32(-1), np.float32(1))
  signs[0] = 0
  h = 30 + np.float32(0.45) * signs
  h[0] = 127
  h[2] = h[2] + 2
  weights = np.zeros((64, 20), np.float32)
  weights[:, 3] = -127 * signs
  weights[:, 11] = 127 * signs
  return h[None], weights


PLANTED = pytest.mark.parametrize("plant", [misleading_weights, misleading_features])


@PLANTED
def test_the_best_column_by_codes_may_be_wrong_within_the_bound(plant):
  h, weights = plant()
  kernel = screened(weights)
  codes = {part: kernel[part] for part in ("codes", "scales")}
  assert rounded.multiply("native", jnp.asarray(h), codes)[0].argmax() == 3
  assert product(h, weights).argmax() == 11
  assert exact(h, weights, kernel)[0, [3, 11]].all()


@PLANTED
@pytest.mark.parametrize("part", [0.9, 0.1])
def test_a_smaller_bound_is_noticed(part, plant):
  h, weights = plant()
  kernel = screened(weights)
  with pytest.raises(AssertionError):
    exact(h, weights, {**kernel, "bounds": kernel["bounds"] * np.float32(part)})


def test_overflowing_codes_do_not_mislead():
  h, weights = misleading_weights()
  most = np.round(weights[:, 3] + 0.01).sum()  # By codes; 10 more would overflow.
  h *= np.finfo(np.float32).max / (most - 10)
  assert product(h, weights).argmax() == 11
  assert np.isfinite(product(h, weights)).all()
  exact(h, weights)


@pytest.mark.parametrize("size", [1e-36, 1e-30, 1e-10, 1e10, 1e30])
def test_the_argmax_is_right_for_numbers_of_any_size(size):
  h = normal(1, 3, 64)
  weights = normal(2, 64, 300)
  assert exact(h * np.float32(size), weights).any(axis=1).all()
  assert exact(h, weights * np.float32(size)).any(axis=1).all()
  weights[:, ::2] *= np.float32(size)
  assert exact(h, weights).any(axis=1).all()


@pytest.mark.parametrize("tied", [False, True])
def test_the_first_of_equal_logits_wins(tied):
  assert exact(np.zeros((2, 64), np.float32), normal(3, 64, 300), tied=tied).all()
  assert exact(normal(4, 2, 64), np.zeros((64, 300), np.float32), tied=tied).all()
  assert exact(normal(4, 2, 64), np.ones((64, 3000), np.float32), tied=tied).all()


@pytest.mark.parametrize("where", ["h", "weights"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_noticed(bad, where):
  """`certain_log_prob` is NaN for rows with NaN or infinity, as in the full product."""
  h = normal(5, 3, 64)
  weights = normal(6, 64, 300)
  (h if where == "h" else weights)[1, 7] = bad
  found = product(h, screened(weights))
  full = product(h, weights)
  scores = [certain_log_prob(jnp.asarray(logits)) for logits in (found, full)]
  np.testing.assert_array_equal(*scores)
  numbers = np.isfinite(full).all(axis=1)
  np.testing.assert_array_equal(found.argmax(1)[numbers], full.argmax(1)[numbers])


def test_more_rows_than_max_rows_use_the_full_product():
  h = normal(7, products.MAX_ROWS + 1, 64)
  weights = normal(8, 64, 300)
  assert exact(h, weights).all()


# ---- Decoding. ----

DRAFTER = Quantized(4, 8, gamma=3)


def decoding(target, sampling, drafter=None, **words):
  """Returns a decode, the parameters, and the parameters with the head's screen."""
  decoder, params = assembled(target, None, drafter, **words)
  keys = row_keys(jax.random.key(0), len(INPUTS))

  def run(params):
    return decoder.decode(params, INPUTS, keys, sampling, ROOM, 1)

  return run, params, {**params, certified.NAME: certified.screen(params["target"])}


@pytest.mark.parametrize(
  ("config", "drafter"), [(T5_1_0, None), (tiny_gpt.TARGET, DRAFTER)]
)
def test_greedy_decodes_do_not_change_with_a_certified_head(config, drafter):
  run, params, screened_params = decoding(model(config), GREEDY, drafter)
  chex.assert_trees_all_equal(jax.jit(run)(params), jax.jit(run)(screened_params))
  assert "specdec_certified" in str(jax.make_jaxpr(run)(screened_params))


@pytest.mark.parametrize(
  ("words", "sampling"),
  [
    ({}, Sampling()),
    ({"drafter": DRAFTER}, Sampling()),
    ({"drafter": DRAFTER, "rule": "typical"}, GREEDY),
    ({"drafter": DRAFTER, "rule": "coupled"}, Sampling()),
  ],
)
def test_decodes_that_need_the_distribution_compute_every_logit(words, sampling):
  run, _, screened_params = decoding(model(), sampling, **words)
  assert "specdec_certified" not in str(jax.make_jaxpr(run)(screened_params))


def test_auto_uses_a_certified_head_for_large_heads(monkeypatch):
  decoder, _ = assembled(model())

  def wanted():
    return decoder.derive(GREEDY)

  assert wanted() == {}
  monkeypatch.setattr(certified, "LEAST", 64 * 16)
  assert wanted() == {certified.NAME: certified.screen}
  assert decoder.derive(Sampling()) == {}
  monkeypatch.setattr(library, "bytes_by", lambda: "portable C++")
  assert wanted() == {}
  config = dataclasses.replace(tiny.TARGET, head="certified")
  certain, _ = assembled(Model(network_for(config), model().params))
  assert certain.derive(GREEDY) == {certified.NAME: certified.screen}


def test_rounded_weights_and_capped_logits_exclude_a_certified_head():
  config = dataclasses.replace(tiny.TARGET, head="certified", weights="int8")
  with pytest.raises(ValueError, match="already have 8 bits"):
    certified.is_used(config, reads_argmaxes=True)
  config = dataclasses.replace(GEMMA_2, logits_cap=30.0)
  assert "logits are capped" in certified.problem(config)
