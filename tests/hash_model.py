"""A language model that is a table, whose law depends on every token before.

It keeps its tokens in a cache like a network's, so a stale or missing entry changes
what it predicts; and its law can be enumerated.
"""

import dataclasses
import functools

import flax.struct
import jax.numpy as jnp
import numpy as np

from specdec_t5x.network.cache import block_mask
from tests.exactness.enumeration import Setting, target_law
from tests.exactness.laws import adjusted

MODULUS = 97


@flax.struct.dataclass
class TokenCache:
  index: jnp.ndarray  # [B]
  tokens: jnp.ndarray  # [B, S]

  def at(self, index):
    return self.replace(index=index)

  def moved(self, source, destination, size):
    rows, block = jnp.arange(self.index.size)[:, None], jnp.arange(size)
    moved = self.tokens[rows, source[:, None] + block]
    tokens = self.tokens.at[rows, destination[:, None] + block].set(moved)
    return self.replace(tokens=tokens)

  def of_rows(self, rows):
    return TokenCache(self.index[rows], self.tokens[rows])


@dataclasses.dataclass(frozen=True)
class HashModel:
  """Logits are row (hash of all tokens so far) of a random table.

  A prompt, where it has one, stands between the start token and every output.
  """

  seed: int
  vocab_size: int
  scale: float = 1.5
  eos_bias: float = 0.0
  prompt: tuple[int, ...] = ()

  @property
  def table(self):
    rng = np.random.default_rng(self.seed)
    table = self.scale * rng.normal(size=(MODULUS, self.vocab_size))
    table[:, 1] += self.eos_bias
    return table.astype(np.float32)

  def start(self, rows, num_slots):
    # Slots start with garbage: nothing may read one before it is written.
    size = len(self.prompt)
    tokens = jnp.full((rows, size + num_slots), 3)
    known = jnp.array((0, *self.prompt)[:size], jnp.int32)
    return TokenCache(jnp.full(rows, size), tokens.at[:, :size].set(known))

  def extend(self, cache, tokens, positions=None, tree=None):
    size, slots = tokens.shape[1], cache.tokens.shape[1]
    rows = jnp.arange(tokens.shape[0])[:, None]
    written_to = cache.index[:, None] + jnp.arange(size)
    written = cache.tokens.at[rows, written_to].set(tokens)
    if tree is None:
      positions = written_to
      tree = jnp.broadcast_to(jnp.tri(size, dtype=bool), (*tokens.shape, size))
    stands_at = jnp.broadcast_to(jnp.arange(slots), written.shape)
    stands_at = stands_at.at[rows, written_to].set(positions)
    terms = (written + 1) * jnp.asarray(_weights(slots))[stands_at]
    seen = block_mask(cache.index, slots, tree)
    sums = jnp.where(seen, terms[:, None], 0).sum(axis=-1) % MODULUS
    logits = jnp.asarray(self.table)[sums]
    return logits, logits, TokenCache(cache.index + size, written)

  def law(self, sampling):
    """The adjusted law as a function of the output so far, in float64."""
    table, weights = self.table, _weights(64)

    @functools.cache
    def law(output):
      terms = [(x + 1) * weights[i] for i, x in enumerate((0, *self.prompt, *output))]
      return adjusted(table[sum(terms) % MODULUS], sampling)

    return law


def _weights(size):
  # Powers of a primitive root: all places differ, so tokens that trade places show.
  assert size < MODULUS, "weights repeat"
  return np.array([pow(5, i, MODULUS) for i in range(size)])


def sequence_law(model, sampling, max_length):
  """Returns the probability of each padded output, by enumeration in float64."""
  law = model.law(sampling)
  outputs = target_law(Setting(law, law, None, 0, max_length))
  return {o + (0,) * (max_length - len(o)): mass for o, mass in outputs.items()}
