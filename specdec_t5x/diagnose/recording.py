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

from specdec_t5x.api import Model, padded_batches
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.types import Cache, ExtendFn
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import Decoded, row_keys
from specdec_t5x.diagnose import divergence, precision
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.native.laws import adjusted_probs


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

  def gathered(
    self, sources: Int[Array, "B M"], destination: Int[Array, "B"]
  ) -> "RecordedCache":
    """Returns the cache with entries of each row copied from anywhere in it."""
    copies = jnp.take_along_axis(self.logits, sources[..., None], axis=1)
    logits = _write(self.logits, copies, destination)
    return RecordedCache(self.cache.gathered(sources, destination), logits)


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
  decoder: SpeculativeDecoder, params, inputs: Int[Array, "B E"], settings: Settings
) -> tuple[Decoded, Float[Array, "B T V"]]:
  """Decodes without speculation; returns the outputs and each token's logits."""
  keys, loop = row_keys(jax.random.key(0), inputs.shape[0]), _Keeping()
  plain = PlainDecoder(decoder.target, settings.block)
  extend, start = plain.prepare(params, inputs, keys, settings.max_length)
  room = settings.max_length, settings.eos_id, adjusted_probs, settings.block
  decoded = generate_plain(
    recorded(extend), GREEDY, _with_record(start, decoder), *room, loop
  )
  return decoded, loop.last.state.target_cache.logits[:, : settings.max_length]


def record_speculative(
  decoder: SpeculativeDecoder, params, inputs: Int[Array, "B E"], settings: Settings
) -> tuple[Decoded, Float[Array, "B T V"]]:
  """Decodes with speculation; returns the outputs and each token's logits."""
  keys, loop = row_keys(jax.random.key(0), inputs.shape[0]), _Keeping()
  spec, start = decoder.prepare(
    params, inputs, keys, GREEDY, settings.max_length, settings.eos_id
  )
  extend = recorded(spec.context.target.extend)
  target = dataclasses.replace(spec.context.target, extend=extend)
  context = dataclasses.replace(spec.context, target=target)
  spec = dataclasses.replace(spec, context=context)
  decoded = generate(spec, _with_record(start, decoder), loop)
  return decoded, loop.last.state.target_cache.logits[:, : settings.max_length]


def _with_record(state, decoder):
  cache = state.target_cache
  shape = (cache.index.size, cache.num_slots, decoder.target.config.vocab_size)
  return state.replace(target_cache=RecordedCache(cache, jnp.zeros(shape)))


def score_whole(
  decoder: SpeculativeDecoder,
  params,
  inputs: Int[Array, "B E"],
  tokens: Int[Array, "B T"],
) -> Float[Array, "B T V"]:
  """Returns the target's logits of each token, in one pass without a cache."""
  fed = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
  # All count as tokens: those after the end are seen by none before it.
  return decoder.target.apply(
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
  drafter = DraftModel(draft.network, settings.gamma)
  decoder = SpeculativeDecoder(target.network, drafter)
  params = {"target": target.params, "draft": draft.params}
  run = _program(decoder, settings)
  results = []
  dtype = target.network.config.dtype
  with precision.full_precision(dtype):
    for _, batch, count in padded_batches(ids, settings.batch_size):
      found = jax.tree.map(np.asarray, run(params, batch))
      results.append(jax.tree.map(lambda array, n=count: array[:n], found))
    epsilon = precision.product_epsilon(dtype)
  results = jax.tree.map(lambda *parts: np.concatenate(parts), *results)
  outputs = [
    [tokens[:length].tolist() for tokens, length in zip(*run, strict=True)]
    for run in results[:2]
  ]
  return divergence.diagnose(*outputs, results[2], epsilon)


def _program(decoder, settings) -> Callable:
  """Returns (params, inputs) -> each run's tokens and lengths, and the measures."""
  # Programs of their own, as the runs to explain are.
  plain, speculative = (
    jax.jit(
      lambda params, inputs, record=record: record(decoder, params, inputs, settings)
    )
    for record in (record_plain, record_speculative)
  )
  whole = jax.jit(lambda *args: score_whole(decoder, *args))
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
