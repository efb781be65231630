"""Autoregressive decoding: temperature sampling and beam search.

A decode function maps `inputs` [B, L] to `(decodes [B, N, L], scores [B, N])`. Column 0
of `inputs` is the start token; further tokens are forced, and 0 means a free position.
The N hypotheses of a row are sorted by increasing score. A decode function calls the
model only through `tokens_to_logits(DecodingState) -> (logits [B * N, V], cache)`.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp

PyTree = Any

# The log probability of impossible events; finite, so that float32 sums stay valid.
NEG_INF = -1.0e7
# Lower temperatures mean greedy decoding.
MIN_TEMPERATURE = 1e-4


@flax.struct.dataclass
class DecodingState:
  """The model's input at one decoding step."""

  cur_index: jax.Array  # [rows] index of the current token.
  sequences: jax.Array  # [rows, length] tokens so far.
  cur_token: jax.Array  # [rows, 1] the current token.
  cache: Mapping[str, Any]


TokensToLogits = Callable[[DecodingState], tuple[jax.Array, Mapping[str, Any]]]


def cache_map(
  fn: Callable[..., jax.Array], cache: Mapping, apply_to_index: bool = False
) -> Mapping:
  """Maps `fn` over a cache, except for leaves with the name `cache_index`.

  Args:
    fn: function of a leaf.
    cache: nested mapping from names to arrays.
    apply_to_index: whether `fn` also maps the index leaves.
  """

  def visit(path, leaf):
    is_index = getattr(path[-1], "key", None) == "cache_index"
    return leaf if is_index and not apply_to_index else fn(leaf)

  return jax.tree_util.tree_map_with_path(visit, cache)


def repeat_rows(x: jax.Array, count: int, offset: int = 0) -> jax.Array:
  """Repeats rows adjacently: [..., batch, rest] -> [..., batch * count, rest]."""
  return jnp.repeat(x, count, axis=offset)


# ---- Sampling. ----


@flax.struct.dataclass
class SamplingLoopState:
  """State of `temperature_sample`; R = batch * num_decodes."""

  cur_index: jax.Array  # [R] index of each row's current token.
  # [R, L + 2]: column 0 is the start token; the last column takes ended rows' writes.
  sequences: jax.Array
  cache: Mapping[str, Any]
  cur_token: jax.Array  # [R, 1] the current token.
  ended: jax.Array  # [R] whether the row has ended.
  rng: jax.Array  # Key for the next step, which splits the key.
  log_prob: jax.Array  # [R] log probability of the sampled tokens.


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
  expand = functools.partial(repeat_rows, count=num_decodes)
  prompts = jnp.pad(expand(jnp.asarray(inputs)), ((0, 0), (0, 2)))
  rows = jnp.arange(prompts.shape[0])

  def expand_leaf(x):
    return expand(x, offset=cache_offset) if x.ndim > cache_offset else x

  def step(state: SamplingLoopState) -> SamplingLoopState:
    """Feeds the current token, then takes the next token of the prompt or samples."""
    logits, new_cache = tokens_to_logits(
      DecodingState(state.cur_index, state.sequences, state.cur_token, state.cache)
    )
    sample_rng, rng = jax.random.split(state.rng)
    sampled, log_prob = sample_token(
      logits, sample_rng, temperature=temperature, topk=topk, topp=topp
    )
    # The index of ended rows still increases. Clamping the index puts the writes of
    # ended rows into the last column.
    index = jnp.minimum(state.cur_index + 1, prompts.shape[1] - 1)
    prompt = jnp.take_along_axis(prompts, index[:, None], axis=1)[:, 0]
    forced = prompt != 0
    token = jnp.where(state.ended, 0, jnp.where(forced, prompt, sampled))
    token = token.astype(jnp.int32)
    # A prompt may contain EOS (as separator); only a sampled EOS ends the row.
    closes = (token == eos_id) & ~forced
    return SamplingLoopState(
      cur_index=state.cur_index + 1,
      sequences=state.sequences.at[rows, index].set(token),
      cache=new_cache,
      cur_token=token[:, None],
      ended=state.ended | closes | (index >= inputs.shape[1]),
      rng=rng,
      log_prob=state.log_prob + jnp.where(state.ended | forced, 0.0, log_prob),
    )

  sequences = prompts.astype(jnp.int32)
  if initial_index is None:
    # Decoding starts from token 0, for every token in column 0 of `inputs`.
    sequences = jnp.zeros_like(sequences)
    cur_index = jnp.zeros(rows.shape, jnp.int32)
  else:
    cur_index = expand(jnp.asarray(initial_index, jnp.int32))
  state = SamplingLoopState(
    cur_index=cur_index,
    sequences=sequences,
    # A prefilled cache has one index per row, other caches have one index in total.
    cache=cache_map(expand_leaf, cache, apply_to_index=initial_index is not None),
    cur_token=jnp.take_along_axis(sequences, cur_index[:, None], axis=1),
    ended=jnp.zeros(rows.shape, jnp.bool_),
    rng=jax.random.PRNGKey(0) if decode_rng is None else decode_rng,
    log_prob=jnp.zeros(rows.shape, jnp.float32),
  )
  final = jax.lax.while_loop(lambda state: ~jnp.all(state.ended), step, state)
  decodes = final.sequences[:, 1:-1].reshape(-1, num_decodes, inputs.shape[1])
  scores = final.log_prob.reshape(-1, num_decodes)
  order = jnp.argsort(scores, axis=-1)
  return (
    jnp.take_along_axis(decodes, order[..., None], axis=1),
    jnp.take_along_axis(scores, order, axis=1),
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
  masked = scaled
  if topk:
    best, _ = jax.lax.top_k(scaled, min(topk, scaled.shape[-1]))
    masked = jnp.where(scaled < best[:, -1:], NEG_INF, scaled)
  elif topp:
    # Masks the tokens outside the smallest set of probability >= topp.
    ordered = jnp.flip(jnp.sort(scaled, axis=-1), axis=-1)
    mass = jnp.cumsum(jax.nn.softmax(ordered, axis=-1), axis=-1)
    last = jnp.sum(mass < topp, axis=-1, keepdims=True)
    last = jnp.minimum(last, scaled.shape[-1] - 1)
    floor = jnp.take_along_axis(ordered, last, axis=-1)
    masked = jnp.where(scaled < floor, NEG_INF, scaled)
  token = jax.random.categorical(rng, masked)
  log_probs = jax.nn.log_softmax(masked)
  return token, jnp.take_along_axis(log_probs, token[:, None], axis=-1)[:, 0]


# ---- Beam search. ----


def brevity_penalty(alpha: float, length: int | jax.Array) -> jax.Array:
  """Computes ((5 + length) / 6) ** alpha, the divisor of log probabilities.

  Wu et al. 2016 (https://arxiv.org/abs/1609.08144), equation 14.
  """
  return jnp.power((5.0 + length) / 6.0, alpha)


@flax.struct.dataclass
class BeamState:
  """State of `beam_search`; K = num_decodes, and scores are in increasing order."""

  cur_index: jax.Array  # () index of the current token.
  live_logprobs: jax.Array  # [B, K] log probabilities of open hypotheses.
  finished_scores: jax.Array  # [B, K] scores of closed hypotheses.
  live_seqs: jax.Array  # [B, K, L + 1] tokens of open hypotheses.
  finished_seqs: jax.Array  # [B, K, L + 1] tokens of closed hypotheses.
  finished_flags: jax.Array  # [B, K] whether a slot holds a closed hypothesis.
  cache: Mapping[str, Any]  # The model's cache for B * K rows.


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
  batch, length = inputs.shape
  prompts = jnp.pad(jnp.asarray(inputs), ((0, 0), (0, 1)))

  def step(state: BeamState) -> BeamState:
    """Extends every open hypothesis; keeps the K best open and the K best closed."""
    log_probs, new_cache = _extensions(state, prompts, tokens_to_logits)
    best, parents = _best_extensions(state, prompts, log_probs, eos_id, alpha)
    # Row b * K + k of the cache belongs to hypothesis k of row b.
    rows = (num_decodes * jnp.arange(batch)[:, None] + parents).reshape(-1)
    cache = cache_map(lambda x: jnp.take(x, rows, axis=cache_offset), new_cache)
    return best.replace(cache=cache)

  def is_open(state: BeamState) -> jax.Array:
    # Log probabilities only fall and the penalty grows with length, so the best
    # possible score of an open hypothesis is the current log probability at the full
    # length.
    best_open = state.live_logprobs[:, -1] / brevity_penalty(alpha, length)
    worst_closed = jnp.min(state.finished_scores, axis=1)
    return (state.cur_index < length) & jnp.any(worst_closed <= best_open)

  empty = jnp.zeros((batch, num_decodes, length + 1), jnp.int32)
  # At first, only one hypothesis is open. Otherwise the beam would hold K equal
  # hypotheses.
  only_last = jnp.where(jnp.arange(num_decodes) == num_decodes - 1, 0.0, NEG_INF)
  start = BeamState(
    cur_index=jnp.zeros((), jnp.int32),
    live_logprobs=jnp.tile(only_last[None].astype(jnp.float32), (batch, 1)),
    finished_scores=jnp.full((batch, num_decodes), NEG_INF, jnp.float32),
    live_seqs=empty,
    finished_seqs=empty,
    finished_flags=jnp.zeros((batch, num_decodes), jnp.bool_),
    cache=cache_map(lambda x: repeat_rows(x, num_decodes, cache_offset), cache),
  )
  final = jax.lax.while_loop(is_open, step, start)
  closed = jnp.any(final.finished_flags, axis=1)
  seqs = jnp.where(closed[:, None, None], final.finished_seqs, final.live_seqs)
  scores = jnp.where(closed[:, None], final.finished_scores, final.live_logprobs)
  return seqs[:, :, 1:], scores


def _extensions(
  state: BeamState, prompts: jax.Array, tokens_to_logits: TokensToLogits
) -> tuple[jax.Array, Mapping[str, Any]]:
  """Returns the log probabilities [B, K, V] of all extensions, and the new cache."""
  sequences = state.live_seqs.reshape(-1, state.live_seqs.shape[-1])
  logits, cache = tokens_to_logits(
    DecodingState(
      cur_index=jnp.broadcast_to(state.cur_index, sequences.shape[:1]),
      sequences=sequences,
      cur_token=jax.lax.dynamic_slice_in_dim(sequences, state.cur_index, 1, axis=1),
      cache=state.cache,
    )
  )
  log_probs = jax.nn.log_softmax(logits).reshape(*state.live_logprobs.shape, -1)
  prompt = prompts[:, state.cur_index + 1]
  # A forced token has log probability 0, and masks the other tokens.
  is_prompt = jax.nn.one_hot(prompt, log_probs.shape[-1], dtype=jnp.bool_)[:, None]
  forced = jnp.where(is_prompt, 0.0, NEG_INF)
  log_probs = jnp.where((prompt != 0)[:, None, None], forced, log_probs)
  return state.live_logprobs[:, :, None] + log_probs, cache


def _best_extensions(
  state: BeamState, prompts: jax.Array, log_probs: jax.Array, eos_id: int, alpha: float
) -> tuple[BeamState, jax.Array]:
  """Returns the state with the best extensions, and each open one's parent [B, K]."""
  batch, num_decodes, vocab_size = log_probs.shape
  # Among 2K candidates, at least K do not end in EOS.
  top, flat_index = jax.lax.top_k(log_probs.reshape(batch, -1), 2 * num_decodes)
  parents = flat_index // vocab_size
  tokens = (flat_index % vocab_size).astype(jnp.int32)
  seqs = _gather(state.live_seqs, parents)
  seqs = seqs.at[:, :, state.cur_index + 1].set(tokens)
  # Within a prompt, EOS is masked or forced, and closes no hypothesis.
  ends = (tokens == eos_id) & (prompts[:, state.cur_index + 1, None] == 0)
  live, live_index = _best(jnp.where(ends, NEG_INF, top), num_decodes)
  scores = jnp.where(ends, top / brevity_penalty(alpha, state.cur_index + 1), NEG_INF)
  pool_scores = jnp.concatenate([state.finished_scores, scores], axis=1)
  pool_seqs = jnp.concatenate([state.finished_seqs, seqs], axis=1)
  pool_flags = jnp.concatenate([state.finished_flags, ends], axis=1)
  finished, finished_index = _best(pool_scores, num_decodes)
  best = state.replace(
    cur_index=state.cur_index + 1,
    live_logprobs=live,
    finished_scores=finished,
    live_seqs=_gather(seqs, live_index),
    finished_seqs=_gather(pool_seqs, finished_index),
    finished_flags=_gather(pool_flags, finished_index),
  )
  return best, _gather(parents, live_index)


def _gather(x: jax.Array, indices: jax.Array) -> jax.Array:
  """Gathers hypotheses of [B, K, ...] by `indices` [B, new K]."""
  return x[jnp.arange(len(x))[:, None], indices]


def _best(values: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
  """Returns the `count` largest values per row in increasing order, and the indices."""
  top, index = jax.lax.top_k(values, count)
  return jnp.flip(top, axis=1), jnp.flip(index, axis=1)
