"""Table language models: the distribution depends on every earlier token.

The tokens are in a cache like a network's, so a stale or missing entry changes the
predictions. The distribution can be enumerated.
"""

import dataclasses
import functools
from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np

from specdec_t5x.contrib.truncation import LARGEST, Truncation
from specdec_t5x.core.rules import rule_at
from specdec_t5x.core.rules.token import Token
from specdec_t5x.decoding.contracts import Context
from specdec_t5x.decoding.decoder import widths_of
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.decoding.state import initial_state, num_slots
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.cache import block_mask
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.network.net import Net
from tests.exactness.distributions import adjusted
from tests.exactness.enumeration import Setting, outputs_of

MODULUS = 97
FIXED = Fixed()


@flax.struct.dataclass
class TokenCache:
  index: jnp.ndarray  # [B]
  tokens: jnp.ndarray  # [B, S]

  def at(self, index):
    return self.replace(index=index)

  def gathered(self, sources, destination):
    rows = jnp.arange(self.index.size)[:, None]
    written_to = destination[:, None] + jnp.arange(sources.shape[1])
    copies = self.tokens[rows, sources]
    return self.replace(tokens=self.tokens.at[rows, written_to].set(copies))


@dataclasses.dataclass(frozen=True)
class HashModel:
  """A model with the logits in row (hash of the tokens so far) of a random table.

  A prompt comes between the start token and every output.
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
    # Slots start with garbage: no slot may be read before the slot is written.
    size = len(self.prompt)
    tokens = jnp.full((rows, size + num_slots), 3)
    prompt_tokens = jnp.array((0, *self.prompt)[:size], jnp.int32)
    return TokenCache(jnp.full(rows, size), tokens.at[:, :size].set(prompt_tokens))

  def extend(self, cache, tokens, positions=None, tree=None):
    size, slots = tokens.shape[1], cache.tokens.shape[1]
    rows = jnp.arange(tokens.shape[0])[:, None]
    written_to = cache.index[:, None] + jnp.arange(size)
    written = cache.tokens.at[rows, written_to].set(tokens)
    if tree is None:
      positions = written_to
      tree = jnp.broadcast_to(jnp.tri(size, dtype=bool), (*tokens.shape, size))
    tree_slots = cache.index[:, None] + size - tree.shape[2] + jnp.arange(tree.shape[2])
    slot_positions = jnp.broadcast_to(jnp.arange(slots), written.shape)
    slot_positions = slot_positions.at[rows, tree_slots].set(positions)
    terms = (written + 1) * jnp.asarray(place_weights(slots))[slot_positions]
    visible = block_mask(cache.index, slots, tree)
    sums = jnp.where(visible, terms[:, None], 0).sum(axis=-1) % MODULUS
    features = sums[..., None].astype(jnp.float32)
    logits = jnp.asarray(self.table)[sums]
    return logits, features, TokenCache(cache.index + size, written)

  def distribution(self, sampling):
    """Returns the adjusted distribution as a function of the output, in float64."""
    table = self.table
    weights = place_weights(64)

    @functools.cache
    def distribution(output):
      terms = [(x + 1) * weights[i] for i, x in enumerate((0, *self.prompt, *output))]
      return adjusted(table[sum(terms) % MODULUS], sampling)

    return distribution


@dataclasses.dataclass(frozen=True)
class Similar(HashModel):
  """A table that mostly agrees with the table of `model`."""

  model: HashModel | None = None
  noise: float = 0.6

  @property
  def table(self):
    return self.model.table + self.noise * super().table


@dataclasses.dataclass(frozen=True)
class EasyAndHard(HashModel):
  """A draft with the target's logits in row 0 and different logits in later rows."""

  target: HashModel | None = None

  def extend(self, *args):
    easy, _, _ = self.target.extend(*args)
    hard, features, cache = super().extend(*args)
    return easy.at[1:].set(hard[1:]), features, cache


class GivenTable(HashModel):
  """A HashModel with the table as an argument of the compiled program."""

  def __init__(self, table, vocab_size):
    super().__init__(0, vocab_size)
    object.__setattr__(self, "_table", table)

  @property
  def table(self):
    return self._table


@dataclasses.dataclass(frozen=True)
class SparseHash:
  """A HashModel that drafts from truncated and rounded distributions, also remotely."""

  model: HashModel
  truncation: Truncation
  remote: Any = None

  def distribution(self, sampling):
    """Returns the draft's distribution as a function of the output, in float64."""
    full_distribution = self.model.distribution(sampling)
    truncation = self.truncation

    @functools.cache
    def distribution(output):
      probs = full_distribution(output).copy()
      descending = np.argsort(-probs, kind="stable")
      probs[descending[truncation.size(probs.size) :]] = 0.0
      before = np.cumsum(probs[descending]) - probs[descending]
      probs[descending[before >= truncation.top_p * probs.sum()]] = 0.0
      shares = probs / probs.sum()
      weights = np.round(shares * min(LARGEST / shares.max(), 2**23))
      return weights / weights.sum()

    return distribution


@dataclasses.dataclass(frozen=True)
class HashHeads:
  """Heads of a HashModel: the logits are rows of a random table per head.

  The row is the target's feature, a hash.
  """

  seed: int
  vocab_size: int
  config: HeadsConfig

  @property
  def tables(self):
    shape = self.config.count, MODULUS, self.vocab_size
    rng = np.random.default_rng(self.seed)
    return (1.5 * rng.normal(size=shape)).astype(np.float32)

  def apply(self, params, h, method):
    assert method == "features"
    rows = h[..., 0].astype(int) % MODULUS
    return jnp.moveaxis(jnp.asarray(self.tables)[:, rows], 0, -2)

  def distribution(self, sampling):
    """Returns the adjusted distribution as a function of (output, path), in float64."""
    weights = place_weights(64)
    tables = self.tables

    @functools.cache
    def distribution(output_and_path):
      output, path = output_and_path
      prefix = (0, *output)[:-1]
      row = sum((x + 1) * weights[i] for i, x in enumerate(prefix)) % MODULUS
      return adjusted(tables[len(path), row].astype(float), sampling)

    return distribution


def place_weights(size):
  """Returns the weight of every place in the hash."""
  # Powers of a primitive root are distinct, so swapped tokens change the hash.
  assert size < MODULUS, "weights repeat"
  return np.array([pow(5, i, MODULUS) for i in range(size)])


def sequence_probs(model, sampling, max_length):
  """Returns the probability of every padded output, enumerated in float64."""
  distribution = model.distribution(sampling)
  return outputs_of(Setting(distribution, distribution, None, (), max_length))


def output_lengths(tokens):
  """Returns lengths up to EOS; token 0 is part of the table's vocabulary."""
  is_end = tokens == 1
  return np.where(is_end.any(1), is_end.argmax(1) + 1, tokens.shape[1])


def plain(target, sampling, keys, max_length, eos_id=1):
  """Returns the outputs of plain decoding, with a row per key."""
  ctx, state = speculation(target, None, Token(), sampling, keys, max_length, eos_id)
  return generate(ctx, state)


def speculation(
  target,
  drafter,
  rule,
  sampling,
  keys,
  max_length,
  eos_id=1,
  *,
  source=None,
  policy=FIXED,
):
  """Returns how to decode and the initial state, with a row per key.

  The drafter's networks are table models; None is plain decoding.
  """
  size = drafter.tree.size if drafter else 0
  slots = num_slots(max_length, size)
  networks = drafter.networks if drafter else {}
  caches = {
    name: network.start(keys.size, slots)
    for name, network in networks.items()
    if hasattr(network, "start")  # Heads have no cache.
  }
  rule, rule_sampling = rule_at(rule, sampling)
  ctx = Context(
    drafter=drafter,
    rule=rule,
    rule_sampling=rule_sampling,
    policy=policy,
    sampling=rule_sampling if rule_sampling.coupled else sampling,
    adjust=adjusted_probs,
    max_length=max_length,
    eos_id=eos_id,
    target=Net(
      target.extend,
      target.vocab_size,
      logits=lambda h: h,
      embed=lambda tokens: tokens[..., None],
    ),
    networks={
      name: Net(getattr(network, "extend", _no_extend), target.vocab_size)
      for name, network in networks.items()
    },
    widths=widths_of(drafter, policy),
  )
  if source is None:
    source = jnp.zeros((keys.size, 0), jnp.int32)
  start = initial_state(
    target.start(keys.size, slots),
    drafter.start(ctx, caches, source) if drafter else None,
    keys,
    max_length,
    size,
    jnp.array([target.prompt], jnp.int32),
  )
  return ctx, start.replace(policy_state=policy.start(keys.size))


def _no_extend(*args):
  """Stands in for the `extend` of heads, which have none."""


def python_loop(condition, body, carry):
  """Runs a loop like `jax.lax.while_loop` in Python, as the compiled loop's oracle."""
  while condition(carry):
    carry = body(carry)
  return carry
