"""A language model that is a table, whose law depends on every token before.

It keeps its tokens in a cache like a network's, so a stale or missing entry changes
what it predicts; and its law can be enumerated.
"""

import dataclasses

import flax.struct
import jax.numpy as jnp
import numpy as np

from specdec_t5x.core.distributions import adjusted_probs

MODULUS = 97


@flax.struct.dataclass
class TokenCache:
  index: jnp.ndarray  # [B]
  tokens: jnp.ndarray  # [B, S]

  def at(self, index):
    return self.replace(index=index)


@dataclasses.dataclass(frozen=True)
class HashModel:
  """Logits are row (hash of all tokens so far) of a random table."""

  seed: int
  vocab_size: int
  scale: float = 1.5
  eos_bias: float = 0.0

  @property
  def table(self):
    rng = np.random.default_rng(self.seed)
    table = self.scale * rng.normal(size=(MODULUS, self.vocab_size))
    table[:, 1] += self.eos_bias
    return table.astype(np.float32)

  def start(self, rows, num_slots):
    # Slots start with garbage: nothing may read one before it is written.
    return TokenCache(jnp.zeros(rows, jnp.int32), jnp.full((rows, num_slots), 3))

  def extend(self, cache, tokens):
    size, slots = tokens.shape[1], jnp.arange(cache.tokens.shape[1])
    rows = jnp.arange(tokens.shape[0])[:, None]
    written = cache.tokens.at[rows, cache.index[:, None] + jnp.arange(size)].set(tokens)
    weights = jnp.asarray(_weights(slots.size))
    sums = jnp.cumsum((written + 1) * weights, axis=1) % MODULUS
    positions = cache.index[:, None] + jnp.arange(size)
    logits = jnp.asarray(self.table)[jnp.take_along_axis(sums, positions, axis=1)]
    return logits, logits, TokenCache(cache.index + size, written)


def _weights(size):
  return np.array([(7 * i * i + 3 * i + 1) % 31 for i in range(size)])


def sequence_law(model, sampling, max_length, eos_id=1):
  """Returns the probability of each padded output, by enumeration in float64."""
  probs = np.asarray(adjusted_probs(jnp.asarray(model.table), sampling), np.float64)
  weights, law = _weights(max_length + 1), {}

  def expand(output, probability):
    ended = output[-1:] == (eos_id,)
    if ended or len(output) == max_length:
      law[output + (0,) * (max_length - len(output))] = probability
      return
    prefix = np.array([0, *output]) + 1
    row = probs[(prefix * weights[: prefix.size]).sum() % MODULUS]
    for token in range(model.vocab_size):
      expand((*output, token), probability * row[token])

  expand((), 1.0)
  return law
