"""Decodes both ways and keeps the logits that each token was chosen by.

An observer is given each iteration's logits. Tokens that are taken back are scored
again by the next call, whose logits replace the old ones, so in the end each place of
the output holds the logits that decided.
Shapes: B rows, T output length, E input length, N block, V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from specdec_t5x.api import Model, padded_batches
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.ends import EndTokens
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.baseline import PlainIteration
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.generate import generate, generate_plain
from specdec_t5x.decoding.state import Decoded, DecodeState, row_keys
from specdec_t5x.decoding.step import Iteration
from specdec_t5x.diagnose import divergence, precision
from specdec_t5x.drafters.draft_model import DraftModel


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to decode.

  Attributes:
    gamma: length of a draft, in tokens.
    max_length: the most tokens of an output.
    batch_size: inputs decoded at once.
    eos_id: the token that ends a sequence, or all such tokens.
    strict: whether the plain run scores in speculation's shapes (`decoding.baseline`).
  """

  gamma: int
  max_length: int
  batch_size: int
  eos_id: EndTokens
  strict: bool = False

  def __post_init__(self):
    for name in ("gamma", "max_length", "batch_size"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")

  @property
  def block(self) -> int:
    """Tokens that a call of the plain run scores."""
    return self.gamma + 1 if self.strict else 1


@dataclasses.dataclass(frozen=True)
class KeepLogits:
  """An observer, of plain decoding as well: the logits of each place of the output.

  Attributes:
    vocab_size: V.
  """

  vocab_size: int

  def start(self, rows: int, max_length: int) -> Float[Array, "B T V"]:
    """Returns zeros."""
    return jnp.zeros((rows, max_length, self.vocab_size))

  def observe(
    self,
    kept: Float[Array, "B T V"],
    before: DecodeState,
    iteration: Iteration | PlainIteration,
  ) -> Float[Array, "B T V"]:
    """Returns these with a chain's logits, the first one's at the next place."""
    logits = iteration.logits
    rows, size = logits.shape[:2]
    places = (before.lengths - before.starts)[:, None] + jnp.arange(size)
    # What is beyond the output is dropped.
    return kept.at[jnp.arange(rows)[:, None], places].set(logits, mode="drop")


def record_plain(
  decoder: SpeculativeDecoder, params, inputs: Int[Array, "B E"], settings: Settings
) -> Decoded:
  """Decodes without speculation; `observed` are each token's logits [B, T, V]."""
  keys = row_keys(jax.random.key(0), inputs.shape[0])
  plain, start = PlainDecoder(decoder.target, settings.block).prepare(
    params, inputs, keys, GREEDY, settings.max_length, settings.eos_id
  )
  return generate_plain(plain, start, observe=_observer(decoder))


def record_speculative(
  decoder: SpeculativeDecoder, params, inputs: Int[Array, "B E"], settings: Settings
) -> Decoded:
  """Decodes with speculation; `observed` are each token's logits [B, T, V]."""
  keys = row_keys(jax.random.key(0), inputs.shape[0])
  given = GREEDY, settings.max_length, settings.eos_id
  spec, start = decoder.prepare(params, inputs, keys, *given)
  extend = _apart(spec.context.target.extend)
  target = dataclasses.replace(spec.context.target, extend=extend)
  context = dataclasses.replace(spec.context, target=target)
  spec = dataclasses.replace(spec, context=context)
  return generate(spec, start, observe=_observer(decoder))


def _observer(decoder) -> KeepLogits:
  return KeepLogits(decoder.target.config.vocab_size)


def _apart(extend: ExtendFn) -> ExtendFn:
  """Returns the model with a barrier, as `decoding.baseline` has.

  The numbers that are kept are the ones that decide, not computed anew for either.
  """

  def extend_apart(*args):
    logits, features, cache = extend(*args)
    return jax.lax.optimization_barrier(logits), features, cache

  return extend_apart


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
    with tqdm(total=len(ids), unit="input") as progress:
      for _, batch, count in padded_batches(ids, settings.batch_size):
        found = jax.tree.map(np.asarray, run(params, batch))
        results.append(jax.tree.map(lambda array, n=count: array[:n], found))
        progress.update(count)
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
    one, other = (f(params, inputs) for f in (plain, speculative))
    passed = whole(params, inputs, one.tokens)
    measures = measure(one.observed, other.observed, passed, one.tokens, other.tokens)
    output = lambda decoded: (decoded.tokens, decoded.statistics.emitted)
    return output(one), output(other), measures

  return run
