"""A table as a language model with caches of several hypotheses per row."""

import dataclasses
import itertools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

MODULUS = 97
WEIGHTS = np.array([(7 * i * i + 3 * i + 1) % 31 for i in range(64)])


@flax.struct.dataclass
class TableCache:
  index: jnp.ndarray  # [B]
  tokens: jnp.ndarray  # [B, S]
  inputs: jnp.ndarray  # [B]
  table: jnp.ndarray  # [97, V]; in the cache, so models share compiled programs

  def at(self, index):
    return self.replace(index=index)

  def gathered(self, sources, destination):
    read = jnp.take_along_axis(self.tokens, sources, axis=1)

    def write(row, new, start):
      return jax.lax.dynamic_update_slice(row, new, (start,))

    return self.replace(tokens=jax.vmap(write)(self.tokens, read, destination))


@dataclasses.dataclass(frozen=True)
class TableModel:
  """Logits are row (hash of the input and of all tokens so far) of a random table.

  `noise` scales the difference between a draft's table and the target's table.
  """

  seed: int
  vocab_size: int = 6
  eos_bias: float = 0.0
  scale: float = 1.5
  noise: float = 0.0

  @property
  def table(self):
    rng = np.random.default_rng(self.seed)
    shape = (MODULUS, self.vocab_size)
    table = self.scale * rng.normal(size=shape) + self.noise * rng.normal(size=shape)
    table[:, 1] += self.eos_bias
    return jnp.asarray(table, jnp.float32)

  def start(self, inputs, num_slots):
    # Slots start with garbage, to reveal reads before writes.
    inputs = jnp.asarray(inputs, jnp.int32)
    garbage = jnp.full((inputs.size, num_slots), 3, jnp.int32)
    return TableCache(jnp.zeros(inputs.size, jnp.int32), garbage, inputs, self.table)

  def hypotheses(self, start, length, alpha):
    """Returns all hypotheses that end within `length`, by increasing float64 score."""
    log_probs = np.asarray(jax.nn.log_softmax(self.table), np.float64)

    def after(path):
      hashed = start + sum((t + 1) * WEIGHTS[p] for p, t in enumerate(path))
      return log_probs[hashed % MODULUS]

    return hypotheses(after, self.vocab_size, length, alpha)


def hypotheses(log_probs, vocab_size, length, alpha):
  """Returns all hypotheses that end within `length`, by increasing score.

  Args:
    log_probs: maps a path to the log-probabilities of the next token.
    vocab_size: the size of the vocabulary.
    length: the most tokens of a hypothesis.
    alpha: the exponent of the length penalty.
  """
  others = [t for t in range(vocab_size) if t != 1]  # Token 1 ends a hypothesis.
  ended = []
  for size in range(1, length + 1):
    for body in itertools.product(others, repeat=size - 1):
      path = [0, *body, 1]
      total = sum(log_probs(path[:i])[path[i]] for i in range(1, len(path)))
      padded = [*path[1:], *[0] * (length - size)]
      ended.append((total / ((5 + size) / 6) ** alpha, padded))
  return sorted(ended)


def extend(cache, tokens, key_positions, visible):
  """Scores tokens with any `TableModel`; a `BeamExtendFn`."""
  slots = cache.index[:, None] + jnp.arange(tokens.shape[1])
  rows = jnp.arange(tokens.shape[0])[:, None]
  written = cache.tokens.at[rows, slots].set(tokens)
  parts = (written + 1) * jnp.asarray(WEIGHTS)[key_positions]
  sums = jnp.where(visible, parts[:, None], 0).sum(axis=2) + cache.inputs[:, None]
  logits = cache.table[sums % MODULUS]
  index = cache.index + tokens.shape[1]
  return logits, cache.replace(index=index, tokens=written)
