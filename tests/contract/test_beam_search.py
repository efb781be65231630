"""decoding.beam_search and the helpers that reshape beams."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from t5x import decoding

from tests.beam.table_beams import hypotheses
from tests.contract.conftest import EOS, TableModel, decoded, runtime_only

search = functools.partial(decoded, decoding.beam_search)


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.0), (1, 0.6), (2, 1.5)])
def test_a_wide_beam_finds_the_best_of_all_hypotheses(seed, alpha):
  model = TableModel(seed, vocab_size=4)
  width = 4**3
  decodes, scores = search(model, length=4, num_decodes=width, alpha=alpha)
  distribution = model.log_probs()
  expected = hypotheses(lambda path: distribution[path[-1]], 4, 4, alpha)[-5:]
  np.testing.assert_allclose(scores[0, -5:], [s for s, _ in expected], atol=1e-4)
  assert decodes[1, -5:].tolist() == [tokens for _, tokens in expected]
  assert (np.diff(scores, axis=1) >= 0).all()


def test_a_narrow_beam_keeps_the_locally_best():
  model = TableModel(0)
  model.logits[:, EOS] = -30.0
  decodes, scores = search(model, num_decodes=1, length=5)
  distribution, token, path, total = model.log_probs(), 0, [], 0.0
  for _ in range(5):
    best = int(distribution[token].argmax())
    total += distribution[token, best]
    token = best
    path.append(best)
  assert decodes[0, 0].tolist() == path
  # What never ended is returned with its plain log probability.
  np.testing.assert_allclose(scores[0, 0], total, atol=1e-4)


def test_prompts_are_copied_and_not_scored():
  model = TableModel(4)
  inputs = [[0, 2, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0]]
  decodes, scores = search(model, inputs=inputs, num_decodes=2, alpha=0.0)
  assert (decodes[0, :, :2] == [2, 3]).all()
  distribution = model.log_probs()
  path = [0, *decodes[0, -1]]
  end = path.index(EOS, 3)
  chain = [distribution[path[i], path[i + 1]] for i in range(2, end)]
  np.testing.assert_allclose(scores[0, -1], sum(chain), atol=1e-4)


@runtime_only
def test_prefill_is_refused():
  with pytest.raises(ValueError, match="initial_index"):
    search(TableModel(0), initial_index=jnp.array([1, 1]))


def test_brevity_penalty():
  np.testing.assert_allclose(
    decoding.brevity_penalty(0.6, 10), (15 / 6) ** 0.6, rtol=1e-6
  )


def test_beam_dimensions():
  x = jnp.arange(12.0).reshape(2, 2, 3)
  flat = decoding.flatten_beam_dim(x)
  assert flat.shape == (4, 3)
  assert (decoding.unflatten_beam_dim(flat, 2, 2) == x).all()
  expanded = decoding.flat_batch_beam_expand(x[:, 0], 2)
  assert (expanded == x[jnp.array([0, 0, 1, 1]), 0]).all()
  assert decoding.flat_batch_beam_expand(x, 3, offset=1).shape == (2, 6, 3)
  picked = decoding.cache_gather_beams(
    {"a": x, "cache_index": jnp.asarray(3)}, jnp.array([[1, 1], [0, 1]]), 2, 2, 2
  )
  assert (picked["a"][0] == x[0, 1]).all()
  assert int(picked["cache_index"]) == 3


def test_cache_map_leaves_the_index_alone():
  cache = {"layer": {"cached_key": jnp.ones(2), "cache_index": jnp.ones(())}}
  double = lambda x: 2 * x
  mapped = decoding.cache_map(double, cache)["layer"]
  assert float(mapped["cache_index"]) == 1
  assert mapped["cached_key"].tolist() == [2, 2]
  both = decoding.cache_map(double, cache, apply_to_index=True)["layer"]
  assert float(both["cache_index"]) == 2
