"""Autoregressive decoding: temperature sampling and beam search.

A decode function maps `inputs` [B, L] to `(decodes [B, N, L], scores [B, N])`. Column 0
of `inputs` is the start token; further tokens are forced, and 0 means a free position.
The N hypotheses of a row are sorted by increasing score. A decode function calls the
model only through `tokens_to_logits(DecodingState) -> (logits [B * N, V], cache)`.
"""

import functools
from collections.abc import Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp

from t5x.beam_search import beam_search as beam_search
from t5x.beam_search import brevity_penalty as brevity_penalty
from t5x.beams import MIN_TEMPERATURE, NEG_INF_VALUE, DecodingState, TokensToLogits
from t5x.beams import NEG_INF as NEG_INF
from t5x.beams import add_beam_dim as add_beam_dim
from t5x.beams import cache_gather_beams as cache_gather_beams
from t5x.beams import cache_map as cache_map
from t5x.beams import flat_batch_beam_expand as flat_batch_beam_expand
from t5x.beams import flatten_beam_dim as flatten_beam_dim
from t5x.beams import unflatten_beam_dim as unflatten_beam_dim


@flax.struct.dataclass
class SamplingLoopState:
  """State of `temperature_sample`; R = batch * num_decodes.

  Attributes:
    cur_index: [R] index of each row's current token.
    sequences: [R, L + 2] tokens; column 0 is the start token, and the last column
      receives the writes of ended rows.
    cache: the model's cache.
    cur_token: [R, 1] the current token.
    ended: [R] whether the row has finished.
    rng: key for the next step, which splits the key.
    log_prob: [R] log probability of the sampled tokens.
  """

  cur_index: jax.Array
  sequences: jax.Array
  cache: Mapping[str, Any]
  cur_token: jax.Array
  ended: jax.Array
  rng: jax.Array
  log_prob: jax.Array


def temperature_sample(
  inputs: jax.Array,
  cache: Mapping[str, Any],
  tokens_to_logits: TokensToLogits,
  eos_id: int,
  decode_rng: jax.Array | None = None,
  num_decodes: int = 1,
  temperature: float = 1.0,
  topk: int = 1,
  topp: float = 0.0,
  cache_offset: int = 0,
  initial_index: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Samples `num_decodes` continuations per row, sorted by log probability.

  Args:
    inputs: [B, L] forced tokens, 0 at free positions; column 0 is the start token.
    cache: the model's cache for B rows.
    tokens_to_logits: one step of the model.
    eos_id: token that ends a row; later tokens are 0.
    decode_rng: key, consumed; None means PRNGKey(0).
    num_decodes: number of independent samples per row.
    temperature: temperature; values below MIN_TEMPERATURE mean greedy decoding.
    topk: number of the most likely tokens to keep; 1 is greedy, 0 keeps all.
    topp: minimal probability of the smallest set of tokens to keep; 0 keeps all.
    cache_offset: number of dimensions before the batch in cache leaves.
    initial_index: [B] number of tokens in the cache (prefill).

  Returns:
    Decodes [B, num_decodes, L] and log probabilities [B, num_decodes] under the
    sampling distribution.
  """
  expand = functools.partial(flat_batch_beam_expand, beam_size=num_decodes)
  prompts = jnp.pad(expand(jnp.asarray(inputs)), ((0, 0), (0, 2)))

  def expand_leaf(x):
    return expand(x, offset=cache_offset) if x.ndim > cache_offset else x

  step_fn = functools.partial(
    _sample_step,
    prompts=prompts,
    tokens_to_logits=tokens_to_logits,
    eos_id=eos_id,
    pick=functools.partial(sample_token, temperature=temperature, topk=topk, topp=topp),
    last_index=inputs.shape[1],
  )
  state = _sampling_init(
    prompts,
    # A prefilled cache has one index per row, other caches have one index in total.
    cache_map(expand_leaf, cache, apply_to_index=initial_index is not None),
    jax.random.PRNGKey(0) if decode_rng is None else decode_rng,
    None if initial_index is None else expand(jnp.asarray(initial_index)),
  )
  final = jax.lax.while_loop(lambda state: ~jnp.all(state.ended), step_fn, state)
  batch = inputs.shape[0]
  decodes = unflatten_beam_dim(final.sequences[:, 1:-1], batch, num_decodes)
  scores = unflatten_beam_dim(final.log_prob, batch, num_decodes)
  order = jnp.argsort(scores, axis=-1)
  return (
    jnp.take_along_axis(decodes, order[..., None], axis=1),
    jnp.take_along_axis(scores, order, axis=1),
  )


def _sampling_init(prompts, cache, rng, initial_index) -> SamplingLoopState:
  count = prompts.shape[0]
  if initial_index is None:
    # Decoding starts from token 0, for every token in column 0 of `inputs`.
    prompts = jnp.zeros_like(prompts)
    initial_index = jnp.zeros(count)
  sequences = prompts.astype(jnp.int32)
  cur_index = initial_index.astype(jnp.int32)
  return SamplingLoopState(
    cur_index=cur_index,
    sequences=sequences,
    cache=cache,
    cur_token=jnp.take_along_axis(sequences, cur_index[:, None], axis=1),
    ended=jnp.zeros((count,), jnp.bool_),
    rng=rng,
    log_prob=jnp.zeros((count,), jnp.float32),
  )


def _sample_step(
  state: SamplingLoopState,
  *,
  prompts,
  tokens_to_logits,
  eos_id,
  pick,
  last_index,
) -> SamplingLoopState:
  """Feeds the current token, then takes the next token of the prompt or samples."""
  logits, cache = tokens_to_logits(
    DecodingState(
      cur_index=state.cur_index,
      sequences=state.sequences,
      cur_token=state.cur_token,
      cache=state.cache,
    )
  )
  sample_rng, rng = jax.random.split(state.rng)
  sampled, log_prob = pick(logits, sample_rng)
  # The index of ended rows still increases. Clamping the index puts the writes of ended
  # rows into the last column.
  index = jnp.minimum(state.cur_index + 1, prompts.shape[1] - 1)
  prompt = jnp.take_along_axis(prompts, index[:, None], axis=1)[:, 0]
  forced = prompt != 0
  token = jnp.where(state.ended, 0, jnp.where(forced, prompt, sampled)).astype(
    jnp.int32
  )
  # A prompt may contain EOS (as separator); only a sampled EOS ends the row.
  closes = (token == eos_id) & ~forced
  rows = jnp.arange(token.shape[0])
  return SamplingLoopState(
    cur_index=state.cur_index + 1,
    sequences=state.sequences.at[rows, index].set(token),
    cache=cache,
    cur_token=token[:, None],
    ended=state.ended | closes | (index >= last_index),
    rng=rng,
    log_prob=state.log_prob + jnp.where(state.ended | forced, 0.0, log_prob),
  )


def sample_token(
  logits: jax.Array, rng: jax.Array, *, temperature: float, topk: int, topp: float
) -> tuple[jax.Array, jax.Array]:
  """Samples one token per row of `logits` [R, V]; returns tokens, log probabilities."""
  if topk and topp:
    raise ValueError(
      f"Expected at most one of topk and topp to be non-zero, got topk={topk} and "
      f"topp={topp}. Set topk=0 to sample with topp."
    )
  if temperature < MIN_TEMPERATURE:
    return jnp.argmax(logits, axis=-1), jnp.zeros(logits.shape[0])
  scaled = logits / temperature
  masked = _k_best(scaled, topk) if topk else _nucleus(scaled, topp)
  token = jax.random.categorical(rng, masked)
  log_probs = jax.nn.log_softmax(masked)
  return token, jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]


def _k_best(logits: jax.Array, k: int) -> jax.Array:
  """Masks the logits of each row below the k largest logits."""
  best, _ = jax.lax.top_k(logits, min(k, logits.shape[-1]))
  return jnp.where(logits < best[:, -1:], NEG_INF_VALUE, logits)


def _nucleus(logits: jax.Array, topp: float) -> jax.Array:
  """Masks the tokens outside the smallest set of probability >= topp; 0 masks none."""
  if not topp:
    return logits
  ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
  mass = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1)
  last = jnp.minimum(jnp.sum(mass < topp, axis=-1, keepdims=True), logits.shape[-1] - 1)
  floor = jnp.take_along_axis(ordered, last, axis=-1)
  return jnp.where(logits < floor, NEG_INF_VALUE, logits)
