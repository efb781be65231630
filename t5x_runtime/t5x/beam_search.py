"""Beam search, exported as `decoding.beam_search`."""

import functools
from collections.abc import Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp

from t5x import beams
from t5x.beams import (
  NEG_INF_VALUE,
  DecodingState,
  TokensToLogits,
  add_beam_dim,
  cache_map,
  flatten_beam_dim,
  unflatten_beam_dim,
)


def brevity_penalty(alpha: float, length: int | jax.Array) -> jax.Array:
  """Computes ((5 + length) / 6) ** alpha, the divisor of log probabilities.

  Wu et al. 2016 (https://arxiv.org/abs/1609.08144), equation 14.
  """
  return jnp.power((5.0 + length) / 6.0, alpha)


@flax.struct.dataclass
class BeamState:
  """State of `beam_search`; K = num_decodes.

  Attributes:
    cur_index: () index of the current token.
    live_logprobs: [B, K] log probabilities of open hypotheses, in increasing order.
    finished_scores: [B, K] scores of closed hypotheses, in increasing order.
    live_seqs: [B, K, L + 1] tokens of open hypotheses.
    finished_seqs: [B, K, L + 1] tokens of closed hypotheses.
    finished_flags: [B, K] whether a slot holds a closed hypothesis.
    cache: the model's cache, [B, K, ...].
  """

  cur_index: jax.Array
  live_logprobs: jax.Array
  finished_scores: jax.Array
  live_seqs: jax.Array
  finished_seqs: jax.Array
  finished_flags: jax.Array
  cache: Mapping[str, Any]


def beam_search(
  inputs: jax.Array,
  cache: Mapping[str, Any],
  tokens_to_logits: TokensToLogits,
  eos_id: int,
  num_decodes: int = 4,
  alpha: float = 0.6,
  decode_rng: jax.Array | None = None,
  cache_offset: int = 0,
  initial_index: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Returns the `num_decodes` best hypotheses by log probability / brevity penalty.

  Args:
    inputs: [B, L] forced tokens, 0 at free positions; column 0 is the start token.
    cache: the model's cache for B rows.
    tokens_to_logits: one step of the model.
    eos_id: token that closes a hypothesis.
    num_decodes: K, the width of the beam.
    alpha: exponent of the brevity penalty.
    decode_rng: ignored, because beam search is deterministic.
    cache_offset: number of dimensions before the batch in cache leaves.
    initial_index: must be None: the contract has no prefill for beam search.

  Returns:
    Decodes [B, K, L] and scores [B, K], by increasing score.
  """
  del decode_rng
  if initial_index is not None:
    raise ValueError(
      "beam_search expected initial_index=None, got an array. Prefilled prompts are "
      "not supported here: pass the prompt in `inputs` or use temperature_sample."
    )
  length = inputs.shape[1]
  step_fn = functools.partial(
    _beam_step,
    prompts=jnp.pad(jnp.asarray(inputs), ((0, 0), (0, 1))),
    tokens_to_logits=tokens_to_logits,
    eos_id=eos_id,
    alpha=alpha,
    cache_offset=cache_offset,
  )
  final = jax.lax.while_loop(
    functools.partial(_beam_continues, length=length, alpha=alpha),
    step_fn,
    _beam_init(inputs.shape[0], num_decodes, length, cache, cache_offset),
  )
  closed = jnp.any(final.finished_flags, axis=1)
  seqs = jnp.where(closed[:, None, None], final.finished_seqs, final.live_seqs)
  scores = jnp.where(closed[:, None], final.finished_scores, final.live_logprobs)
  return seqs[:, :, 1:], scores


def _beam_init(batch, beam, length, cache, offset) -> BeamState:
  empty = jnp.zeros((batch, beam, length + 1), jnp.int32)
  # At first, only one hypothesis is open. Otherwise the beam would hold K equal
  # hypotheses.
  only_last = jnp.where(jnp.arange(beam) == beam - 1, 0.0, NEG_INF_VALUE)
  return BeamState(
    cur_index=jnp.zeros((), jnp.int32),
    live_logprobs=jnp.tile(only_last[None].astype(jnp.float32), (batch, 1)),
    finished_scores=jnp.full((batch, beam), NEG_INF_VALUE, jnp.float32),
    live_seqs=empty,
    finished_seqs=empty,
    finished_flags=jnp.zeros((batch, beam), jnp.bool_),
    cache=cache_map(lambda x: add_beam_dim(x, beam, offset), cache),
  )


def _beam_continues(state: BeamState, *, length, alpha) -> jax.Array:
  """Returns whether an open hypothesis can still displace a closed hypothesis."""
  # Log probabilities only fall and the penalty grows with length, so the best possible
  # score of an open hypothesis is the current log probability at the full length.
  best_open = state.live_logprobs[:, -1] / brevity_penalty(alpha, length)
  worst_closed = jnp.min(state.finished_scores, axis=1)
  return (state.cur_index < length) & jnp.any(worst_closed <= best_open)


def _beam_step(
  state: BeamState,
  *,
  prompts,
  tokens_to_logits,
  eos_id,
  alpha,
  cache_offset,
) -> BeamState:
  """Extends every open hypothesis; keeps the K best open and the K best closed."""
  beam = state.live_logprobs.shape[1]
  log_probs, cache = _beam_logprobs(state, prompts, tokens_to_logits, cache_offset)
  # Among 2K candidates, at least K do not end in EOS.
  vocab = log_probs.shape[-1]
  top, flat_index = jax.lax.top_k(log_probs.reshape(log_probs.shape[0], -1), 2 * beam)
  parents = flat_index // vocab
  tokens = (flat_index % vocab).astype(jnp.int32)
  seqs = beams.gather_beams(state.live_seqs, parents)
  seqs = seqs.at[:, :, state.cur_index + 1].set(tokens)
  # Within a prompt, EOS is masked or forced, and closes no hypothesis.
  ends = (tokens == eos_id) & (prompts[:, state.cur_index + 1, None] == 0)

  live, live_index = _best(jnp.where(ends, NEG_INF_VALUE, top), beam)
  live_parents = jnp.take_along_axis(parents, live_index, axis=1)
  scores = jnp.where(
    ends, top / brevity_penalty(alpha, state.cur_index + 1), NEG_INF_VALUE
  )
  pool_seqs = jnp.concatenate([state.finished_seqs, seqs], axis=1)
  pool_flags = jnp.concatenate([state.finished_flags, ends], axis=1)
  finished, finished_index = _best(
    jnp.concatenate([state.finished_scores, scores], axis=1), beam
  )
  return BeamState(
    cur_index=state.cur_index + 1,
    live_logprobs=live,
    finished_scores=finished,
    live_seqs=beams.gather_beams(seqs, live_index),
    finished_seqs=beams.gather_beams(pool_seqs, finished_index),
    finished_flags=beams.gather_beams(pool_flags, finished_index),
    cache=cache_map(
      lambda leaf: beams.gather_beams(leaf, live_parents, cache_offset), cache
    ),
  )


def _beam_logprobs(state, prompts, tokens_to_logits, offset):
  """Returns [B, K, V] log probabilities of all extensions, and the new cache."""
  batch, beam = state.live_logprobs.shape
  sequences = flatten_beam_dim(state.live_seqs)
  logits, cache = tokens_to_logits(
    DecodingState(
      cur_index=jnp.broadcast_to(state.cur_index, sequences.shape[:1]),
      sequences=sequences,
      cur_token=jax.lax.dynamic_slice_in_dim(sequences, state.cur_index, 1, axis=1),
      cache=cache_map(lambda x: flatten_beam_dim(x, offset), state.cache),
    )
  )
  log_probs = unflatten_beam_dim(jax.nn.log_softmax(logits), batch, beam)
  prompt = prompts[:, state.cur_index + 1]
  # A forced token has log probability 0, and masks the other tokens.
  is_prompt = jax.nn.one_hot(prompt, log_probs.shape[-1], dtype=jnp.bool_)[:, None]
  forced = jnp.where(is_prompt, 0.0, NEG_INF_VALUE)
  log_probs = jnp.where((prompt != 0)[:, None, None], forced, log_probs)
  cache = cache_map(lambda x: unflatten_beam_dim(x, batch, beam, offset), cache)
  return state.live_logprobs[:, :, None] + log_probs, cache


def _best(values: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Returns the `count` largest values per row in increasing order, and the indices."""
  top, index = jax.lax.top_k(values, count)
  return jnp.flip(top, axis=1), jnp.flip(index, axis=1)
