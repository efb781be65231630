"""The draft's side of a link: a network, and the known tokens of each row.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms
per token.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_t5x.api import Model
from specdec_t5x.contrib.link.drafter import Setup
from specdec_t5x.contrib.link.wire import Ask, Drafts
from specdec_t5x.contrib.sparse import drafted_sparsely
from specdec_t5x.core.types import Cache, ExtendFn
from specdec_t5x.decoding.state import initial_state
from specdec_t5x.native import distributions
from specdec_t5x.network.functional import extend_fn, lacks_encoder, start_decoding
from specdec_t5x.network.transformer import check_encoder

# The number of tokens per call when the draft's cache lacks known tokens.
_BLOCK = 16


@flax.struct.dataclass
class Rows:
  """The state of a session's rows.

  Attributes:
    source: the encoder's inputs.
    sequences: the tokens, the start token first.
    lengths: the number of known tokens.
    cache: the network's cache.
    read: the tokens in the cache, from the first slot on.
  """

  source: Int[Array, "B E"]
  sequences: Int[Array, "B S"]
  lengths: Int[Array, "B"]
  cache: Cache
  read: Int[Array, "B S"]


class Drafting:
  """Drafts for sessions with separate rows.

  Args:
    start: from the parameters, inputs [B, E] and a number of slots to an empty cache.
    extend: from the parameters to the network's `extend`.
    params: the network's parameters.
    vocab_size: the number of the network's tokens.
  """

  def __init__(
    self,
    start: Callable[[Any, Array, int], Cache],
    extend: Callable[[Any], ExtendFn],
    params: Any,
    vocab_size: int,
  ):
    self.vocab_size = vocab_size
    self._start_cache = start
    self._extend = extend
    self._params = params
    # Compiled once per shape, for all sessions.
    self._start = jax.jit(self._started, static_argnums=2)
    self._step = jax.jit(self._stepped, static_argnums=2)

  @classmethod
  def of(cls, model: Model) -> "Drafting":
    """Returns drafting by a loaded model."""
    network = model.network
    if lacks_encoder(network):
      check_encoder(network.config)

    def start(params, inputs, slots):
      _, cache = start_decoding(network, params, inputs, slots)
      return cache

    return cls(
      start,
      functools.partial(extend_fn, network),
      jax.device_put(model.params),
      network.config.vocab_size,
    )

  def size(self, setup: Setup) -> int:
    """Returns the size of a session's cache in bytes, without an allocation."""
    source = jax.ShapeDtypeStruct((setup.rows, setup.inputs), np.int32)
    cache = self._start.eval_shape(self._params, source, setup.slots)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))

  def open(self, setup: Setup) -> Rows:
    """Returns the rows of a session before the first request.

    `open` compiles all programs of the session.
    """
    source = np.zeros((setup.rows, setup.inputs), np.int32)
    tokens = np.zeros((setup.rows, setup.slots), np.int32)
    lengths = np.zeros(setup.rows, np.int32)
    cache = self._start(self._params, source, setup.slots)
    rows = Rows(source, tokens, lengths, cache, tokens)
    uniforms = np.zeros((setup.rows, setup.gamma, setup.draws), np.float32)
    ask = Ask(lengths > 0, lengths, tokens, uniforms, None)
    _, next_rows = self.draft(setup, rows, ask)
    # Later requests pass arrays of earlier steps, and a cache with replaced rows. The
    # second draft compiles the programs for such arguments.
    cache = _chosen(lengths > 0, cache, next_rows.cache)
    self.draft(setup, next_rows.replace(cache=cache), ask)
    return rows

  def draft(self, setup: Setup, rows: Rows, ask: Ask) -> tuple[Drafts, Rows]:
    """Returns a draft of the live rows, and the rows after the draft."""
    source = rows.source if ask.source is None else ask.source
    is_new = (source != rows.source).any(axis=1)
    cache = rows.cache
    if is_new.any():
      fresh = self._start(self._params, source, setup.slots)
      cache = _chosen(is_new, fresh, cache)
    rows = Rows(source, ask.sequences, ask.lengths, cache, rows.read)
    tokens, distribution, cache, read = self._step(
      self._params, rows, setup, ask.uniforms
    )
    # At temperature 0 the token of NaN logits is -1, which a message cannot hold. In
    # sampling a NaN distribution has only zero weights, which mark the error.
    tokens = np.maximum(np.asarray(tokens), 0)
    if distribution is None:
      kept = np.zeros((*tokens.shape, 0), np.int32)
      weights = kept
    else:
      kept = np.asarray(distribution.tokens)
      weights = np.asarray(distribution.weights)
    return Drafts(tokens, kept, weights), rows.replace(cache=cache, read=read)

  def _started(self, params, source, slots):
    # An empty input becomes a token of padding. The cache has room for an overrunning
    # block.
    if not source.shape[1]:
      source = jnp.zeros((source.shape[0], 1), jnp.int32)
    return self._start_cache(params, source, slots + _BLOCK)

  def _stepped(self, params, rows: Rows, setup: Setup, uniforms):
    extend = self._extend(params)
    lengths = jnp.maximum(rows.lengths, 1)
    same = jnp.cumprod(rows.read == rows.sequences, axis=1).sum(axis=1)
    cache = rows.cache.at(jnp.minimum(rows.cache.index, same))
    cache = _caught_up(extend, cache, rows.sequences, lengths)
    # Drafting reads only the sequences, lengths and cache of a decode's state.
    keys = jax.random.split(jax.random.key(0), lengths.shape[0])
    state = initial_state(cache, cache, keys, 1, 1)
    tokens, distribution, cache = drafted_sparsely(
      extend,
      state.replace(sequences=rows.sequences, lengths=lengths),
      uniforms,
      setup.sampling,
      setup.truncation,
      distributions.adjusted_probs,
    )
    # Appends the draft to the sequences; tokens beyond the buffer are dropped.
    places = lengths[:, None] + jnp.arange(setup.gamma)
    row_numbers = jnp.arange(lengths.shape[0])[:, None]
    read = rows.sequences.at[row_numbers, places].set(tokens, mode="drop")
    return tokens, distribution, cache, read


def _caught_up(
  extend: ExtendFn, cache: Cache, sequences: Int[Array, "B S"], lengths: Int[Array, "B"]
) -> Cache:
  """Returns the cache with all known tokens but the last two."""
  padded = jnp.pad(sequences, ((0, 0), (0, _BLOCK)))

  def lacks_tokens(cache):
    return (cache.index < lengths - 2).any()

  def read_block(cache):
    # A row with a complete cache reads the row's last tokens again.
    start = jnp.minimum(cache.index, jnp.maximum(lengths - 2, 0))
    places = start[:, None] + jnp.arange(_BLOCK)
    tokens = jnp.take_along_axis(padded, places, axis=1)
    _, _, cache = extend(cache.at(start), tokens)
    return cache.at(jnp.minimum(start + _BLOCK, jnp.maximum(lengths - 2, 0)))

  return jax.lax.while_loop(lacks_tokens, read_block, cache)


@jax.jit
def _chosen(is_new: Bool[Array, "B"], new: Cache, old: Cache) -> Cache:
  """Returns the cache with new rows from `new` and all other rows from `old`."""

  def choose(new, old):
    is_new_row = is_new.reshape(-1, *[1] * (new.ndim - 1))
    return jnp.where(is_new_row, new, old)

  return jax.tree.map(choose, new, old)
