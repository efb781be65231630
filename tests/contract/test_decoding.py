"""decoding.temperature_sample, decoding.beam_search, and helpers for beams."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from t5x import decoding

from specdec_t5x.core.distributions import Sampling
from tests.contract.conftest import EOS, TableModel, decoded, runtime_only
from tests.exactness.distributions import adjusted

pytestmark = pytest.mark.slow

search = functools.partial(decoded, decoding.beam_search)


def sample(model, seed=0, **kwargs):
  key = jax.random.PRNGKey(seed)
  return decoded(decoding.temperature_sample, model, decode_rng=key, **kwargs)


def greedy(model, prompt, length):
  """Returns the greedy output of a loop: the prompt, then argmax tokens up to EOS."""
  tokens = []
  current = 0
  for i in range(length):
    current = prompt[i] if i < len(prompt) else int(model.logits[current].argmax())
    tokens.append(current)
    if i >= len(prompt) and current == EOS:
      break
  return tokens + [0] * (length - len(tokens))


@pytest.mark.parametrize(
  ("seed", "setting"),
  [(0, {"temperature": 0.0, "topk": 0}), (1, {"topk": 1}), (0, {"temperature": 1e-5})],
)
def test_greedy_takes_the_best_token_and_pads_after_eos(seed, setting):
  model = TableModel(seed)
  decodes, scores = sample(model, **setting)
  expected = greedy(model, [], 6)
  assert decodes.tolist() == [[expected], [expected]]
  assert scores.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("seed", range(2))
def test_prompts_are_copied_and_not_scored(seed):
  model = TableModel(seed)
  inputs = [[0, 2, 3, 0, 0, 0], [0, 4, 0, 0, 0, 0], [0, 3, 1, 2, 0, 0]]
  prompts = [[2, 3], [4], [3, 1, 2]]  # An EOS in a prompt ends nothing.
  decodes, _ = sample(model, inputs=inputs, temperature=0.0)
  expected = [greedy(model, prompt, 6) for prompt in prompts]
  assert decodes[:, 0].tolist() == expected
  sampled, scores = sample(model, inputs=inputs, topk=0)
  distribution = model.log_probs()
  for row, prompt, score in zip(sampled[:, 0], prompts, scores[:, 0], strict=True):
    row = row.tolist()
    path = [0, *row]
    end = row.index(EOS, len(prompt)) + 1 if EOS in row[len(prompt) :] else 6
    chain = [distribution[path[i], path[i + 1]] for i in range(len(prompt), end)]
    np.testing.assert_allclose(score, sum(chain), atol=1e-4)


def test_prefilled_prompts_give_the_same_decodes():
  model = TableModel(3)
  inputs = [[0, 2, 3, 0, 0, 0], [0, 4, 0, 0, 0, 0]]
  plain, _ = sample(model, inputs=inputs, temperature=0.0)
  prefilled, _ = sample(
    model, inputs=inputs, temperature=0.0, initial_index=jnp.array([2, 1])
  )
  assert plain.tolist() == prefilled.tolist()


@pytest.mark.parametrize(
  ("temperature", "topk", "topp"),
  [(1.0, 0, 0.0), (0.5, 0, 0.0), (2.0, 3, 0.0), (1.0, 2, 0.0), (1.5, 0, 0.8)],
)
def test_samples_follow_the_truncated_distribution(temperature, topk, topp):
  model = TableModel(1, vocab_size=8, scale=1.0)
  settings = {"temperature": temperature, "topk": topk, "topp": topp}
  decodes, scores = sample(model, rows=4000, length=1, **settings)
  tokens = decodes[:, 0, 0]
  frequencies = np.bincount(tokens, minlength=8) / len(tokens)
  distribution = adjusted(model.logits[0], Sampling(temperature, topk, topp))
  assert distribution[tokens].all()
  np.testing.assert_allclose(frequencies, distribution, atol=4 * np.sqrt(0.25 / 4000))
  np.testing.assert_allclose(scores[:, 0], np.log(distribution[tokens]), atol=1e-4)


def test_num_decodes_are_sorted_by_increasing_score():
  model = TableModel(2)
  decodes, scores = sample(model, topk=0, num_decodes=4)
  assert decodes.shape == (2, 4, 6)
  assert (np.diff(scores, axis=1) >= 0).all()
  assert len({tuple(d) for d in decodes[0]}) > 1


def test_topk_and_topp_together_are_refused():
  with pytest.raises(ValueError, match="topk"):
    sample(TableModel(0), topk=2, topp=0.5)


def test_a_key_gives_the_samples_of_upstream():
  """Upstream T5X at cc342d4 on jax 0.10 draws the same tokens."""
  model = TableModel(0)
  decodes, scores = sample(model, topk=0, seed=3)
  again, _ = sample(model, topk=0, seed=3)
  assert decodes.tolist() == again.tolist()
  distribution = model.log_probs()
  key = jax.random.PRNGKey(3)
  subkey, key = jax.random.split(key)
  first = jax.random.categorical(subkey, jnp.asarray(model.logits)[jnp.array([0, 0])])
  assert decodes[:, 0, 0].tolist() == first.tolist()
  path = [0, *decodes[0, 0]]
  end = path.index(EOS) if EOS in path else len(path) - 1
  chain = [distribution[path[i], path[i + 1]] for i in range(end)]
  np.testing.assert_allclose(scores[0, 0], sum(chain), atol=1e-4)


# ---- Beams. ----


def hypotheses(model, length, alpha):
  """Returns all hypotheses that end within `length`, by increasing score."""
  log_probs = model.log_probs()
  others = [token for token in range(len(log_probs)) if token != EOS]
  ended = []
  for size in range(1, length + 1):
    for body in itertools.product(others, repeat=size - 1):
      path = [0, *body, EOS]
      total = sum(log_probs[pair] for pair in itertools.pairwise(path))
      padded = [*path[1:], *[0] * (length - size)]
      ended.append((total / ((5 + size) / 6) ** alpha, padded))
  return sorted(ended)


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.0), (1, 0.6), (2, 1.5)])
def test_a_wide_beam_finds_the_best_of_all_hypotheses(seed, alpha):
  model = TableModel(seed, vocab_size=4)
  width = 4**3
  decodes, scores = search(model, length=4, num_decodes=width, alpha=alpha)
  expected = hypotheses(model, 4, alpha)[-5:]
  np.testing.assert_allclose(scores[0, -5:], [s for s, _ in expected], atol=1e-4)
  assert decodes[1, -5:].tolist() == [tokens for _, tokens in expected]
  assert (np.diff(scores, axis=1) >= 0).all()


def test_a_beam_of_one_is_greedy():
  model = TableModel(0)
  model.logits[:, EOS] = -30.0
  decodes, scores = search(model, num_decodes=1, length=5)
  distribution = model.log_probs()
  token = 0
  path = []
  total = 0.0
  for _ in range(5):
    best = int(distribution[token].argmax())
    total += distribution[token, best]
    token = best
    path.append(best)
  assert decodes[0, 0].tolist() == path
  # A hypothesis without EOS is returned with the plain log probability.
  np.testing.assert_allclose(scores[0, 0], total, atol=1e-4)


def test_prompts_of_beams_are_copied_and_not_scored():
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
