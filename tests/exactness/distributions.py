"""Float64 distributions of the next token that depend on the whole prefix."""

import functools

import numpy as np

from specdec_t5x.core.distributions import Sampling


def adjusted(logits, sampling):
  """Applies temperature, top-k and top-p like T5X; temperature 0 gives the argmax."""
  logits = np.asarray(logits, np.float64)
  if sampling.greedy:
    return np.eye(logits.size)[np.argmax(logits)]
  probs = np.exp((logits - logits.max()) / sampling.temperature)
  descending = np.argsort(-probs, kind="stable")
  if sampling.top_k:
    probs[descending[sampling.top_k :]] = 0.0
  probs /= probs.sum()
  if sampling.top_p:
    before = np.cumsum(probs[descending]) - probs[descending]
    probs[descending[before >= sampling.top_p]] = 0.0
  return probs / probs.sum()


def random_logits(seed, size):
  """Returns a function from prefixes to random logits."""
  return lambda prefix: (
    1.5 * np.random.default_rng([seed, len(prefix), *prefix]).normal(size=size)
  )


def sampled(seed, size, sampling):
  """Returns a function from prefixes to random adjusted distributions."""
  logits = random_logits(seed, size)
  return functools.cache(lambda prefix: adjusted(logits(prefix), sampling))


def one_hot(seed, size):
  """Returns a function from prefixes to one-hot distributions."""
  logits = random_logits(seed, size)
  return functools.cache(lambda prefix: np.eye(size)[np.argmax(logits(prefix))])


def few_of_many(seed, tokens, size):
  """Returns random distributions on a few tokens of a large vocabulary."""

  @functools.cache
  def distribution(prefix):
    distribution = np.zeros(size)
    distribution[list(tokens)] = adjusted(
      random_logits(seed, len(tokens))(prefix), Sampling()
    )
    return distribution

  return distribution


def on(tokens, size):
  """Returns the uniform distribution on some tokens."""
  distribution = np.zeros(size)
  distribution[list(tokens)] = 1 / len(tokens)
  return lambda prefix: distribution
