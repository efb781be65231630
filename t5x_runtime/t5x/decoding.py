"""Autoregressive decoding: temperature sampling and beam search.

A decode function turns `inputs` [B, L] (0 where free, a token where the output is
prescribed, column 0 being the start token) into `(decodes [B, N, L], scores [B, N])`
with the N hypotheses of a row sorted by increasing score. The model is reached only
through `tokens_to_logits(DecodingState) -> (logits [B * N, V], cache)`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np

from t5x.beam_search import beam_search as beam_search
from t5x.beam_search import brevity_penalty as brevity_penalty
from t5x.beams import add_beam_dim as add_beam_dim
from t5x.beams import cache_gather_beams as cache_gather_beams
from t5x.beams import cache_map as cache_map
from t5x.beams import flat_batch_beam_expand as flat_batch_beam_expand
from t5x.beams import flatten_beam_dim as flatten_beam_dim
from t5x.beams import unflatten_beam_dim as unflatten_beam_dim
from t5x.decode_types import (
  MIN_TEMPERATURE,
  NEG_INF_VALUE,
  DecodingState,
  TokensToLogits,
)
from t5x.decode_types import NEG_INF as NEG_INF


@flax.struct.dataclass
class SamplingLoopState:
  """State of `temperature_sample`, seen by its callbacks; R = batch * num_decodes.

  Attributes:
    step: () how many tokens have been fed.
    cur_index: [R] where each row's current token sits.
    sequences: [R, L + 2] tokens; column 0 is the start token, the last is spill.
    cache: the model's cache.
    cur_token: [R, 1] the current token.
    ended: [R, 1] whether the row has finished.
    rng: key that the next step splits.
    log_prob: [R] log probability of what was sampled.
  """

  step: jax.Array
  cur_index: jax.Array
  sequences: jax.Array
  cache: Mapping[str, Any]
  cur_token: jax.Array
  ended: jax.Array
  rng: jax.Array
  log_prob: jax.Array


StateCallbackFn = Callable[[SamplingLoopState], SamplingLoopState]
LogitCallbackFn = Callable[[jax.Array, SamplingLoopState], jax.Array]


def temperature_sample(
  inputs: jax.Array,
  cache: Mapping[str, Any],
  tokens_to_logits: TokensToLogits,
  eos_id: int,
  decode_rng: jax.Array | None = None,
  num_decodes: int = 1,
  temperature: float | jax.Array = 1.0,
  topk: int = 1,
  topp: float = 0.0,
  cache_offset: int = 0,
  initial_index: jax.Array | None = None,
  max_decode_steps: int | jax.Array | None = None,
  max_decode_steps_hard_limit: int | None = None,
  rescale_log_probs: bool = True,
  state_callback_fn: StateCallbackFn | None = None,
  logit_callback_fn: LogitCallbackFn | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Samples `num_decodes` continuations per row, sorted by log probability.

  Args:
    inputs: [B, L] prescribed tokens, 0 where free; column 0 is the start token.
    cache: the model's cache for B rows.
    tokens_to_logits: one step of the model.
    eos_id: token that ends a row; what follows is 0.
    decode_rng: key, consumed; PRNGKey(0) where None.
    num_decodes: independent samples per row.
    temperature: scalar or [B]; below MIN_TEMPERATURE the row is greedy.
    topk: keep the k best tokens; 1 is greedy, 0 keeps all.
    topp: keep the smallest set whose probability reaches this; 0 keeps all.
    cache_offset: dimensions before the batch in cache leaves.
    initial_index: [B] tokens that the cache already holds (prefill).
    max_decode_steps: most tokens after the prompt, scalar or [B].
    max_decode_steps_hard_limit: static bound on `max_decode_steps`.
    rescale_log_probs: whether scores are of the law sampled from, or of the model.
    state_callback_fn: applied to the state before every step and at the end.
    logit_callback_fn: applied to the logits before sampling.

  Returns:
    Decodes [B, num_decodes, L] and log probabilities [B, num_decodes].
  """
  _check_truncation(topk, topp)
  max_decode_steps = _bounded_steps(
    max_decode_steps, max_decode_steps_hard_limit, inputs.shape[1]
  )
  expand = functools.partial(flat_batch_beam_expand, beam_size=num_decodes)
  per_row = lambda x: expand(jnp.asarray(x)) if jnp.ndim(x) else x
  rows = expand(jnp.asarray(inputs))
  step_fn = functools.partial(
    _sample_step,
    prompts=jnp.pad(rows, ((0, 0), (0, 2))),
    tokens_to_logits=tokens_to_logits,
    eos_id=eos_id,
    pick=functools.partial(
      sample_token,
      temperature=per_row(temperature),
      topk=topk,
      topp=per_row(topp) if jnp.size(topp) > 1 else topp,
      rescale_log_probs=rescale_log_probs,
    ),
    last_index=_last_index(rows, initial_index, max_decode_steps, per_row),
    logit_callback_fn=logit_callback_fn,
  )
  state = _sampling_init(
    rows,
    _expand_cache(cache, num_decodes, cache_offset, initial_index is not None),
    jax.random.PRNGKey(0) if decode_rng is None else decode_rng,
    None if initial_index is None else expand(jnp.asarray(initial_index)),
  )
  final = _run_sampling(state, step_fn, state_callback_fn)
  decodes = unflatten_beam_dim(final.sequences[:, 1:-1], inputs.shape[0], num_decodes)
  scores = unflatten_beam_dim(final.log_prob, inputs.shape[0], num_decodes)
  order = jnp.argsort(scores, axis=-1)
  return (
    jnp.take_along_axis(decodes, order[..., None], axis=1),
    jnp.take_along_axis(scores, order, axis=1),
  )


def _expand_cache(cache, num_decodes, cache_offset, is_prefilled):
  """A prefilled cache has an index a row, any other one index for all."""
  expand = lambda leaf: (
    flat_batch_beam_expand(leaf, num_decodes, offset=cache_offset)
    if leaf.ndim > cache_offset
    else leaf
  )
  return cache_map(expand, cache, apply_to_index=is_prefilled)


def _check_truncation(topk, topp) -> None:
  """At most one of top-k and top-p; a traced top-p can't be looked at."""
  if topk and not isinstance(topp, jax.core.Tracer) and np.any(np.asarray(topp) != 0):
    raise ValueError(
      f"Expected at most one of topk and topp to be non-zero, got topk={topk} and "
      f"topp={topp}. Set topk=0 to sample with topp."
    )


def _bounded_steps(max_decode_steps, hard_limit, length: int):
  """max_decode_steps, no more than the hard limit, checked against the length."""
  if max_decode_steps is None:
    return None
  if hard_limit is not None:
    max_decode_steps = jnp.minimum(max_decode_steps, hard_limit)
  if not isinstance(max_decode_steps, jax.core.Tracer) and np.any(
    np.asarray(max_decode_steps) > length
  ):
    raise ValueError(
      f"Expected max_decode_steps <= {length}, the length of `inputs`, got "
      f"{max_decode_steps}. Lengthen the targets feature or lower max_decode_steps."
    )
  return max_decode_steps


def _last_index(rows, initial_index, max_decode_steps, per_row):
  """[R] or scalar: the row ends once it holds a token at this index."""
  length = rows.shape[1]
  if max_decode_steps is None:
    return length
  if initial_index is None:
    prompt = jnp.sum(rows != 0, axis=1)
  else:
    prompt = per_row(initial_index)
  return jnp.minimum(length, prompt + per_row(max_decode_steps))


def _sampling_init(rows, cache, rng, initial_index) -> SamplingLoopState:
  count = rows.shape[0]
  if initial_index is None:
    cur_index = jnp.zeros((count,), jnp.int32)
    # A decoder starts from token 0 whatever the caller put in column 0.
    sequences = jnp.zeros((count, rows.shape[1] + 2), jnp.int32)
    cur_token = jnp.zeros((count, 1), jnp.int32)
  else:
    cur_index = initial_index.astype(jnp.int32)
    sequences = jnp.pad(rows.astype(jnp.int32), ((0, 0), (0, 2)))
    cur_token = jnp.take_along_axis(sequences, cur_index[:, None], axis=1)
  return SamplingLoopState(
    step=jnp.zeros((), jnp.int32),
    cur_index=cur_index,
    sequences=sequences,
    cache=cache,
    cur_token=cur_token,
    ended=jnp.zeros((count, 1), jnp.bool_),
    rng=rng,
    log_prob=jnp.zeros((count,), jnp.float32),
  )


def _run_sampling(state, step_fn, state_callback_fn) -> SamplingLoopState:
  callback = state_callback_fn or (lambda s: s)
  state = jax.lax.while_loop(
    lambda s: ~jnp.all(s.ended), lambda s: step_fn(callback(s)), state
  )
  return callback(state)


def _sample_step(
  state: SamplingLoopState,
  *,
  prompts,
  tokens_to_logits,
  eos_id,
  pick,
  last_index,
  logit_callback_fn,
) -> SamplingLoopState:
  """Feeds the current token, then takes the prompt's next token or samples one."""
  logits, cache = tokens_to_logits(
    DecodingState(
      cur_index=state.cur_index,
      sequences=state.sequences,
      cur_token=state.cur_token,
      cache=state.cache,
    )
  )
  if logit_callback_fn is not None:
    logits = logit_callback_fn(logits, state)
  sample_rng, rng = jax.random.split(state.rng)
  sampled, log_prob = pick(logits, sample_rng)
  ended = state.ended[:, 0]
  # Ended rows keep counting while others finish; clamping keeps their writes in the
  # spill column.
  index = jnp.minimum(state.cur_index + 1, prompts.shape[1] - 1)
  prompt = jnp.take_along_axis(prompts, index[:, None], axis=1)[:, 0]
  forced = prompt != 0
  token = jnp.where(ended, 0, jnp.where(forced, prompt, sampled)).astype(jnp.int32)
  # A prompt may hold EOS (as separator); only a sampled one ends the row.
  closes = (token == eos_id) & ~forced
  rows = jnp.arange(token.shape[0])
  return SamplingLoopState(
    step=state.step + 1,
    cur_index=state.cur_index + 1,
    sequences=state.sequences.at[rows, index].set(token),
    cache=cache,
    cur_token=token[:, None],
    ended=(ended | closes | (index >= last_index))[:, None],
    rng=rng,
    log_prob=state.log_prob + jnp.where(ended | forced, 0.0, log_prob),
  )


def sample_token(
  logits: jax.Array, rng: jax.Array, *, temperature, topk, topp, rescale_log_probs
) -> tuple[jax.Array, jax.Array]:
  """One token per row of `logits` [R, V], and its log probability."""
  temperature = jnp.broadcast_to(temperature, logits.shape[:1])[:, None]
  greedy = temperature[:, 0] < MIN_TEMPERATURE
  best = jnp.argmax(logits, axis=-1)
  scaled = logits / jnp.maximum(temperature, MIN_TEMPERATURE)
  kept = _k_best(scaled, topk) if topk > 0 else _nucleus(scaled, topp)
  token = jax.random.categorical(rng, kept)
  token = jnp.where(greedy, best, token)
  law = jax.nn.log_softmax(kept if rescale_log_probs else logits)
  log_prob = jnp.take_along_axis(law, token[:, None], axis=-1)[:, 0]
  return token, jnp.where(greedy & rescale_log_probs, 0.0, log_prob)


def _k_best(logits: jax.Array, k: int) -> jax.Array:
  """Masks all but the k largest logits of each row."""
  best, _ = jax.lax.top_k(logits, min(k, logits.shape[-1]))
  return jnp.where(logits < best[:, -1:], NEG_INF_VALUE, logits)


def _nucleus(logits: jax.Array, topp) -> jax.Array:
  """Masks what lies outside the smallest set of probability >= topp (0: nothing)."""
  if not isinstance(topp, jax.core.Tracer) and not np.any(np.asarray(topp)):
    return logits
  topp = jnp.broadcast_to(topp, logits.shape[:1])[:, None]
  ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
  mass = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1)
  last = jnp.minimum(jnp.sum(mass < topp, axis=-1, keepdims=True), logits.shape[-1] - 1)
  floor = jnp.take_along_axis(ordered, last, axis=-1)
  return jnp.where((topp > 0) & (logits < floor), NEG_INF_VALUE, logits)
