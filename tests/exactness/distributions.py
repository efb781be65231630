"""Distributions of the next token that depend on the whole prefix, in float64."""

import functools

import numpy as np

from specdec_t5x.core.distributions import Sampling


def adjusted(logits, sampling):
  """Temperature, then top-k, then top-p, as T5X does; argmax at temperature 0."""
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
  """A function from prefixes to logits."""
  return lambda prefix: (
    1.5 * np.random.default_rng([seed, len(prefix), *prefix]).normal(size=size)
  )


def sampled(seed, size, sampling):
  """Random logits, adjusted."""
  logits = random_logits(seed, size)
  return functools.cache(lambda prefix: adjusted(logits(prefix), sampling))


def one_hot(seed, size):
  """A distribution that is certain of one token."""
  logits = random_logits(seed, size)
  return functools.cache(lambda prefix: np.eye(size)[np.argmax(logits(prefix))])


def few_of_many(seed, tokens, size):
  """Random distributions on some tokens of a large vocabulary."""

  @functools.cache
  def distribution(prefix):
    distribution = np.zeros(size)
    distribution[list(tokens)] = adjusted(
      random_logits(seed, len(tokens))(prefix), Sampling()
    )
    return distribution

  return distribution


def on(tokens, size):
  """The uniform distribution on some tokens."""
  distribution = np.zeros(size)
  distribution[list(tokens)] = 1 / len(tokens)
  return lambda prefix: distribution
