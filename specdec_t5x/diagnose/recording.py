"""Decodes both ways and keeps the logits that chose each token.

An observer gets each iteration's logits. After a rejection the next call scores the
places again, and new logits replace old logits. So the final logits chose the tokens.

Shapes: B rows, T output length, E input length, N block, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from tqdm import tqdm

from specdec_t5x.api import Model, padded_batches
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.types import EndTokens, ExtendFn
from specdec_t5x.decoding.baseline import PlainIteration
from specdec_t5x.decoding.decoders import PlainDecoder, SpeculativeDecoder
from specdec_t5x.decoding.generate import generate, generate_plain
from specdec_t5x.decoding.state import Decoded, DecodeState, row_keys
from specdec_t5x.decoding.step import Iteration
from specdec_t5x.diagnose import divergence, precision
from specdec_t5x.drafters.draft_model import DraftModel


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings of the two decodes.

  Attributes:
    gamma: the draft length in tokens.
    max_length: the most tokens of an output.
    batch_size: the number of inputs decoded at once.
    eos_id: the token or tokens that end a sequence.
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
    """The number of tokens per call of the plain run."""
    return self.gamma + 1 if self.strict else 1


@dataclasses.dataclass(frozen=True)
class KeepLogits:
  """An observer of plain or speculative decoding that keeps the logits of each place.

  Attributes:
    vocab_size: V.
  """

  vocab_size: int

  def start(self, rows: int, max_length: int) -> Float[Array, "B T V"]:
    """Returns zeros for all places."""
    return jnp.zeros((rows, max_length, self.vocab_size))

  def observe(
    self,
    kept: Float[Array, "B T V"],
    before: DecodeState,
    iteration: Iteration | PlainIteration,
  ) -> Float[Array, "B T V"]:
    """Returns the kept logits with a chain's logits from the next free place on."""
    logits = iteration.logits
    rows, size = logits.shape[:2]
    places = (before.lengths - before.starts)[:, None] + jnp.arange(size)
    # Logits beyond the output are dropped.
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
  spec, start = decoder.prepare(
    params, inputs, keys, GREEDY, settings.max_length, settings.eos_id
  )
  extend = _apart(spec.context.target.extend)
  target = dataclasses.replace(spec.context.target, extend=extend)
  context = dataclasses.replace(spec.context, target=target)
  spec = dataclasses.replace(spec, context=context)
  return generate(spec, start, observe=_observer(decoder))


def _observer(decoder) -> KeepLogits:
  return KeepLogits(decoder.target.config.vocab_size)


def _apart(extend: ExtendFn) -> ExtendFn:
  """Returns `extend` with a barrier after the logits, as in `decoding.baseline`.

  Without a barrier XLA could compute the logits twice, for the choice of the token and
  for the record. With a barrier the recorded logits are the deciding logits.
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
  """Returns the target's logits of each token, from one pass without a cache."""
  shifted = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
  # The mask counts all tokens: tokens before the end never attend to later tokens.
  return decoder.target.apply(
    {"params": params["target"]},
    inputs,
    shifted,
    jnp.ones_like(shifted),
    enable_dropout=False,
  )


def compare(
  target: Model, draft: Model, ids: Sequence[Sequence[int]], settings: Settings
) -> divergence.Report:
  """Decodes all inputs both ways and judges the differences of the outputs.

  Args:
    target: the target model.
    draft: the draft model.
    ids: the inputs' tokens, EOS included.
    settings: the settings of the decodes.
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
        result = jax.tree.map(np.asarray, run(params, batch))
        results.append(jax.tree.map(lambda array, n=count: array[:n], result))
        progress.update(count)
    epsilon = precision.product_epsilon(dtype)
  plain, speculative, measures = jax.tree.map(
    lambda *parts: np.concatenate(parts), *results
  )
  return divergence.diagnose(_outputs(plain), _outputs(speculative), measures, epsilon)


def _outputs(run) -> list[list[int]]:
  """Returns a run's outputs without padding, from tokens and lengths."""
  return [tokens[:length].tolist() for tokens, length in zip(*run, strict=True)]


def _program(decoder, settings) -> Callable:
  """Returns (params, inputs) -> each run's tokens and lengths, and the measures."""
  # Separate programs, as in the decodes to explain.
  plain = jax.jit(functools.partial(record_plain, decoder, settings=settings))
  speculative = jax.jit(
    functools.partial(record_speculative, decoder, settings=settings)
  )
  score_outputs = jax.jit(functools.partial(score_whole, decoder))
  measure = jax.jit(divergence.measure)

  def output(decoded):
    return decoded.tokens, decoded.statistics.emitted

  def run(params, inputs):
    a = plain(params, inputs)
    b = speculative(params, inputs)
    logits = score_outputs(params, inputs, a.tokens)
    measures = measure(a.observed, b.observed, logits, a.tokens, b.tokens)
    return output(a), output(b), measures

  return run
