import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import (
  GREEDY,
  LEVELS,
  Sampling,
  argmax,
  certain_log_prob,
  draw,
  sample,
)
from specdec_t5x.native import library
from specdec_t5x.native.distributions import adjusted_probs
from tests.core.grid import grid_probs

pytestmark = pytest.mark.slow

by_either = pytest.mark.usefixtures("either_probs")


@pytest.fixture(params=["native", "xla"])
def either_probs(request, monkeypatch):
  """Runs a test with our kernel, if available, and with XLA."""
  if request.param == "xla":
    monkeypatch.setattr(library, "problem", lambda: "not wanted")
  elif reason := library.problem():
    pytest.skip(f"no kernels: {reason}")


LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def probs(logits=LOGITS, **sampling):
  return np.asarray(adjusted_probs(jnp.asarray(logits), Sampling(**sampling)))


SQUARED = np.array([0.5, 0.3, 0.15, 0.05]) ** 2


@by_either
@pytest.mark.parametrize(
  ("sampling", "expected"),
  [
    ({}, [0.5, 0.3, 0.15, 0.05]),
    ({"temperature": 0.5}, SQUARED / SQUARED.sum()),
    # Truncation does not matter.
    ({"temperature": 0.0, "top_k": 2}, [1, 0, 0, 0]),
    ({"temperature": 1e-4, "top_k": 2}, [1, 0, 0, 0]),
    ({"top_k": 2}, [0.625, 0.375, 0, 0]),
  ],
)
def test_adjusted_distributions_by_hand(sampling, expected):
  np.testing.assert_allclose(probs(**sampling), expected, rtol=1e-6)


@by_either
@pytest.mark.parametrize(
  ("top_p", "kept"), [(0.45, 1), (0.55, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)]
)
def test_top_p_keeps_the_fewest_tokens_that_reach_p(top_p, kept):
  assert (probs(top_p=top_p) > 0).sum() == kept


def kept_of_sorted(logits, top_k=0, top_p=0.0):
  """Returns the tokens with a logit of at least the threshold, found by sorting."""
  descending = -np.sort(-logits.astype(np.float64))
  mass = np.exp(descending - descending[0])
  reached = np.cumsum(mass / mass.sum()) >= top_p
  least = descending[top_k - 1 if top_k else reached.argmax()]
  return (logits >= least) & (logits > -np.inf)


@by_either
@pytest.mark.parametrize(
  ("size", "sampling"),
  [
    (700, {"top_k": 1}),
    (4096, {"top_k": 40}),
    (50_000, {"top_k": 5000}),
    (50_000, {"top_p": 0.9}),
    (700, {"top_p": 0.1}),
    (4096, {"top_p": 0.9}),
  ],
)
def test_truncation_of_large_rows_equals_sorting(size, sampling):
  rng = np.random.default_rng(size)
  rows = rng.normal(size=(4, size)).astype(np.float32) * 3
  rows[1] = rows[1].round()  # More ties than a byte can count.
  rows[2, : size // 2] = -np.inf
  rows[3] -= 50  # All logits are negative.
  rows[0, :600] *= 0  # Zeros of both signs.
  sampling = {name: min(value, size - 1) for name, value in sampling.items()}
  found = probs(rows, **sampling) > 0
  np.testing.assert_array_equal(found, [kept_of_sorted(r, **sampling) for r in rows])


def random_probs(kind, size):
  rng = np.random.default_rng(size)
  distribution = {
    "flat": lambda: rng.dirichlet(np.ones(size)),
    "heavy-tailed": lambda: 1 / (1.0 + rng.permutation(size)),
    "peaked": lambda: np.exp(4 * rng.normal(size=size)),
    "some of 40": lambda: rng.multinomial(1000, rng.dirichlet(np.ones(40))),
  }[kind]()
  if distribution.size < size:
    few = distribution
    distribution = np.zeros(size)
    distribution[rng.choice(size, few.size, replace=False)] = few
  return np.float32(distribution / distribution.sum())


@pytest.mark.parametrize(
  ("kind", "size"),
  [("flat", 32_128), ("heavy-tailed", 32_128), ("peaked", 250_112)],
)
def test_the_drawn_distribution_is_p_to_a_millionth(kind, size):
  probs = random_probs(kind, size)
  drawn, _, _ = grid_probs(probs)
  assert drawn.sum() == pytest.approx(1, abs=1e-12)
  exact = probs / probs.sum(dtype=np.float64)
  assert np.abs(drawn - exact).sum() / 2 < 1e-6
  assert (drawn[exact > 1e-6] > 0).all()


@pytest.mark.parametrize("size", [5, 200, 33_000])
def test_sample_matches_the_grid_s_cells(size):
  """The distribution of the test before is therefore the drawn distribution."""
  probs = (
    random_probs("some of 40", size) if size > 40 else np.float32([0, 0.1, 0, 0.9, 0])
  )
  distribution, first, last = grid_probs(probs)
  assert (distribution[probs == 0] == 0).all()
  tokens = np.flatnonzero(distribution)
  first = first[tokens]
  last = last[tokens]
  # Two programs may round sums differently, which moves an edge by a step or two.
  low = np.minimum(first + 4, last)
  high = np.maximum(last - 4, first)
  edges = np.concatenate([low, high, low - 4, low - 5, high + 4, high + 5])
  uniforms = jnp.asarray(np.clip(edges, 0, 2**24 - 1) / 2.0**24, jnp.float32)
  drawn = jax.jit(sample)(jnp.broadcast_to(probs, (len(edges), size)), uniforms)
  np.testing.assert_array_equal(drawn[: 2 * len(tokens)], np.tile(tokens, 2))
  # Next to an edge, a neighbour may be drawn, but never a token without mass.
  assert (probs[np.asarray(drawn)] > 0).all()


@pytest.mark.parametrize("size", [5, 200, 33_000])
def test_sample_never_returns_a_token_without_mass(size):
  """Some masses are zero or too small to count; uniforms are at the edges."""
  rng = np.random.default_rng(0)
  probs = np.zeros((64, size), np.float32)
  probs[:, 1] = np.exp(rng.uniform(-40, 0, 64))
  probs[:, size // 2] = 1
  probs[:, [0, -1]] = 1e-39
  uniforms = rng.choice([0.0, 2.0**-24, 0.5, 1 - 2.0**-24], (64, LEVELS))
  drawn = jax.jit(sample)(jnp.asarray(probs), jnp.asarray(uniforms, jnp.float32))
  assert set(np.asarray(drawn).tolist()) == {1, size // 2}


def test_sample_refuses_fewer_uniforms_than_levels():
  with pytest.raises(ValueError, match="vocabulary of 65 needs 3 uniforms, got 2"):
    sample(jnp.ones(65), jnp.zeros(2))


@pytest.mark.parametrize(
  ("size", "dtype"),
  [(1, "float32"), (3, "bfloat16"), (128, "float32"), (300, "bfloat16")],
)
def test_argmax_is_numpy_s_with_the_first_of_equal_values(size, dtype):
  # Few distinct values make ties for the maximum in most rows.
  values = np.random.default_rng(size).integers(-4, 0, (6, 5, size))
  found = argmax(jnp.asarray(values, dtype))
  np.testing.assert_array_equal(found, np.argmax(values, axis=-1))


# ---- NaN and infinite logits. ----

SAMPLINGS = (GREEDY, Sampling(), Sampling(0.5, top_k=2), Sampling(top_p=0.9))


@by_either
# YNNPACK's maximum drops NaN. XLA on CPU uses YNNPACK on 32,128 logits, but not on 300.
@pytest.mark.parametrize(
  ("size", "sampling"),
  [(3, SAMPLINGS[0]), (300, SAMPLINGS[1]), *((32_128, each) for each in SAMPLINGS)],
  ids=str,
)
def test_a_distribution_of_nan_or_infinity_is_nan(size, sampling):
  rng = np.random.default_rng(0)
  logits = rng.normal(size=(6, size)).astype(np.float32)
  logits[0, 0] = logits[1, -1] = logits[2] = np.nan
  logits[3, size // 2] = np.inf
  logits[4, : size // 2] = -np.inf
  run = jax.jit(
    lambda logits, uniforms: draw(logits, sampling, uniforms, adjusted_probs)
  )
  token, probs = run(logits, jnp.full((6, LEVELS), 0.3))
  np.testing.assert_array_equal(np.isnan(probs[:4]), True)
  np.testing.assert_allclose(probs[4:].sum(axis=1), 1.0, rtol=1e-5)
  assert ((token >= 0) & (token < size)).all()


@pytest.mark.parametrize(
  ("dtype", "at"), [("float16", 0), ("bfloat16", 4_000), ("float32", 8_063)]
)
def test_a_certain_token_s_log_probability_is_nan_with_invalid_logits(dtype, at):
  logits = np.full((4, 8_064), 10.0, dtype=jnp.dtype(dtype))
  logits[1, at] = np.nan
  logits[2, at] = np.inf
  logits[3, at] = -np.inf
  found = certain_log_prob(jnp.asarray(logits))
  np.testing.assert_array_equal(found, [0.0, np.nan, np.nan, 0.0])
