"""Decodes both ways and keeps the logits that each token was chosen by.

A loop sees its model as a function and a cache. Here the cache holds a buffer besides,
to which each call writes its logits, at the slots that it scores. Tokens that are taken
back are scored again by the next call, over the old ones, so in the end each slot holds
the logits that decided.
Shapes: B rows, T output length, S slots, E input length, N block, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specdec_t5x import assemble
from specdec_t5x.api import Model, padded_batches
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.types import Cache, ExtendFn
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.diagnose import divergence


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to decode.

  Attributes:
    gamma: length of a draft, in tokens.
    max_length: room for an output, in tokens.
    batch_size: inputs decoded at once.
    eos_id: the token that ends a sequence.
    strict: whether the plain run scores in speculation's shapes (`decoding.baseline`).
  """

  gamma: int
  max_length: int
  batch_size: int
  eos_id: int
  strict: bool = False

  def __post_init__(self):
    for name in ("gamma", "max_length", "batch_size"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

  @property
  def block(self) -> int:
    """Tokens that a call of the plain run scores."""
    return self.gamma + 1 if self.strict else 1


@flax.struct.dataclass
class RecordedCache:
  """A cache, and the logits of the last call that scored each slot."""

  cache: Cache
  logits: Float[Array, "B S V"]

  @property
  def index(self) -> Int[Array, "B"]:
    """The number of committed entries of each row."""
    return self.cache.index

  def at(self, index: Int[Array, "B"]) -> "RecordedCache":
    """Returns the cache with `index` committed entries a row."""
    return self.replace(cache=self.cache.at(index))

  def moved(
    self, source: Int[Array, "B"], destination: Int[Array, "B"], size: int
  ) -> "RecordedCache":
    """Returns the cache with `size` entries of each row copied to another slot."""
    read_row = jax.vmap(
      lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, size, axis=0)
    )
    logits = _write(self.logits, read_row(self.logits, source), destination)
    return RecordedCache(self.cache.moved(source, destination, size), logits)

  def of_rows(self, rows: Int[Array, "B"]) -> "RecordedCache":
    """Returns the cache whose row i has the entries of row `rows[i]`."""
    return RecordedCache(self.cache.of_rows(rows), self.logits[rows])


def recorded(extend: ExtendFn) -> ExtendFn:
  """Returns the model over a `RecordedCache`."""

  def extend_and_record(cache, *args):
    logits, features, inner = extend(cache.cache, *args)
    # The numbers that are kept are the ones that decide, not computed anew for either.
    logits = jax.lax.optimization_barrier(logits)
    buffer = _write(cache.logits, logits, cache.index)
    return logits, features, RecordedCache(inner, buffer)

  return extend_and_record


def _write(buffer, new, index):
  write_row = jax.vmap(
    lambda row, block, start: jax.lax.dynamic_update_slice_in_dim(row, block, start, 0)
  )
  return write_row(buffer, new, index)


class _Keeping:
  """A while loop that keeps its last value, for what a decode's result leaves out."""

  def __call__(self, condition, body, carry):
    self.last = jax.lax.while_loop(condition, body, carry)
    return self.last


def record_plain(
  pair: assemble.Pair, params, inputs: Int[Array, "B E"], settings: Settings
) -> tuple[Decoded, Float[Array, "B T V"]]:
  """Decodes without speculation; returns the outputs and each token's logits."""
  keys, loop = row_keys(jax.random.key(0), inputs.shape[0]), _Keeping()
  extend, start = assemble.prepare_plain(
    pair.target, params["target"], inputs, keys, settings.max_length, settings.block
  )
  room = (settings.max_length, settings.eos_id, settings.block)
  decoded = generate_plain(
    recorded(extend), GREEDY, _with_record(start, pair), *room, loop
  )
  return decoded, loop.last.target_cache.logits[:, : settings.max_length]


def record_speculative(
  pair: assemble.Pair, params, inputs: Int[Array, "B E"], settings: Settings
) -> tuple[Decoded, Float[Array, "B T V"]]:
  """Decodes with speculation; returns the outputs and each token's logits."""
  keys, loop = row_keys(jax.random.key(0), inputs.shape[0]), _Keeping()
  spec, start = assemble.prepare(
    pair, params, inputs, keys, GREEDY, settings.max_length, settings.eos_id
  )
  spec = dataclasses.replace(spec, extend=recorded(spec.extend))
  decoded = generate(spec, _with_record(start, pair), loop)
  state, _ = loop.last
  return decoded, state.target_cache.logits[:, : settings.max_length]


def _with_record(state, pair):
  cache = state.target_cache
  shape = (cache.index.size, cache.num_slots, pair.target.config.vocab_size)
  return state.replace(target_cache=RecordedCache(cache, jnp.zeros(shape)))


def score_whole(
  pair: assemble.Pair, params, inputs: Int[Array, "B E"], tokens: Int[Array, "B T"]
) -> Float[Array, "B T V"]:
  """Returns the target's logits of each token, in one pass without a cache."""
  fed = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
  # All count as tokens: those after the end are seen by none before it.
  return pair.target.apply(
    {"params": params["target"]},
    *(inputs, fed, jnp.ones_like(fed)),
    enable_dropout=False,
  )


def compare(
  target: Model, draft: Model, ids: Sequence[Sequence[int]], settings: Settings
) -> divergence.Report:
  """Decodes all inputs both ways and judges where the outputs part.

  Args:
    target: the model whose outputs they are.
    draft: the model that drafts.
    ids: the inputs' tokens, the end of sequence included.
    settings: how to decode.
  """
  pair = assemble.Pair(target.network, draft.network, settings.gamma)
  params = {"target": target.params, "draft": draft.params}
  run = _program(pair, settings)
  results = []
  for _, batch, count in padded_batches(ids, settings.batch_size):
    found = jax.tree.map(np.asarray, run(params, batch))
    results.append(jax.tree.map(lambda array, n=count: array[:n], found))
  results = jax.tree.map(lambda *parts: np.concatenate(parts), *results)
  outputs = [
    [tokens[:length].tolist() for tokens, length in zip(*run, strict=True)]
    for run in results[:2]
  ]
  epsilon = float(jnp.finfo(target.network.config.dtype).eps)
  return divergence.diagnose(*outputs, results[2], epsilon)


def _program(pair, settings) -> Callable:
  """Returns (params, inputs) -> each run's tokens and lengths, and the measures."""
  # Programs of their own, as the runs to explain are.
  plain, speculative = (
    jax.jit(
      lambda params, inputs, record=record: record(pair, params, inputs, settings)
    )
    for record in (record_plain, record_speculative)
  )
  whole = jax.jit(lambda *args: score_whole(pair, *args))
  measure = jax.jit(divergence.measure)

  def run(params, inputs):
    (one, logits), (other, other_logits) = (
      f(params, inputs) for f in (plain, speculative)
    )
    passed = whole(params, inputs, one.tokens)
    measures = measure(logits, other_logits, passed, one.tokens, other.tokens)
    output = lambda decoded: (decoded.tokens, decoded.statistics.emitted)
    return output(one), output(other), measures

  return run
