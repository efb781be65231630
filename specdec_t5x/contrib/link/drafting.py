"""The draft's side of a link: a network, and the known tokens of each row.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms a
token.
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

# Tokens that are read at once where the draft has missed some.
_BLOCK = 16


@flax.struct.dataclass
class Rows:
  """The state of a session's rows.

  Attributes:
    source: the encoder's inputs.
    sequences: the tokens, the start token first.
    lengths: how many of them are known.
    cache: the network's.
    read: the tokens in the cache, from the first slot on.
  """

  source: Int[Array, "B E"]
  sequences: Int[Array, "B S"]
  lengths: Int[Array, "B"]
  cache: Cache
  read: Int[Array, "B S"]


class Drafting:
  """Drafts for sessions, each of rows of its own.

  Args:
    start: from the parameters, inputs [B, E] and a number of slots to an empty cache.
    extend: from the parameters to the function that scores tokens.
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
    self._start_cache, self._extend, self._params = start, extend, params
    # Compiled once for each shape, for all sessions.
    self._start = jax.jit(self._started, static_argnums=2)
    self._step = jax.jit(self._stepped, static_argnums=2)

  @classmethod
  def of(cls, model: Model) -> "Drafting":
    """Returns drafting by a loaded model."""
    network = model.network
    if lacks_encoder(network):
      check_encoder(network.config)
    return cls(
      lambda params, *sizes: start_decoding(network, params, *sizes)[1],
      functools.partial(extend_fn, network),
      jax.device_put(model.params),
      network.config.vocab_size,
    )

  def size(self, setup: Setup) -> int:
    """Returns the bytes that a session's cache takes; nothing is made."""
    source = jax.ShapeDtypeStruct((setup.rows, setup.inputs), np.int32)
    cache = self._start.eval_shape(self._params, source, setup.slots)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))

  def open(self, setup: Setup) -> Rows:
    """Returns the rows of a session before its first request.

    All programs are compiled by then.
    """
    source = np.zeros((setup.rows, setup.inputs), np.int32)
    tokens = np.zeros((setup.rows, setup.slots), np.int32)
    lengths = np.zeros(setup.rows, np.int32)
    cache = self._start(self._params, source, setup.slots)
    rows = Rows(source, tokens, lengths, cache, tokens)
    uniforms = np.zeros((setup.rows, setup.gamma, setup.draws), np.float32)
    ask = Ask(lengths > 0, lengths, tokens, uniforms, None)
    _, again = self.draft(setup, rows, ask)
    # Returned arrays go into the next step, after inputs that change.
    cache = _chosen(lengths > 0, cache, again.cache)
    self.draft(setup, again.replace(cache=cache), ask)
    return rows

  def draft(self, setup: Setup, rows: Rows, ask: Ask) -> tuple[Drafts, Rows]:
    """Returns a draft of the live rows, and the rows after it."""
    source = rows.source if ask.source is None else ask.source
    is_new, cache = (source != rows.source).any(axis=1), rows.cache
    if is_new.any():
      fresh = self._start(self._params, source, setup.slots)
      cache = _chosen(is_new, fresh, cache)
    rows = Rows(source, ask.sequences, ask.lengths, cache, rows.read)
    params = self._params
    tokens, distribution, cache, read = self._step(params, rows, setup, ask.uniforms)
    # A distribution that is no number has no weights, which says so; greedily it is no
    # token.
    tokens = np.maximum(np.asarray(tokens), 0)
    kept = weights = np.zeros((*tokens.shape, 0), np.int32)
    if distribution is not None:
      kept, weights = np.asarray(distribution.tokens), np.asarray(distribution.weights)
    return Drafts(tokens, kept, weights), rows.replace(cache=cache, read=read)

  def _started(self, params, source, slots):
    # Room for a block that overruns, and for what never is no input.
    source = source if source.shape[1] else jnp.zeros((source.shape[0], 1), jnp.int32)
    return self._start_cache(params, source, slots + _BLOCK)

  def _stepped(self, params, rows: Rows, setup: Setup, uniforms):
    extend = self._extend(params)
    lengths = jnp.maximum(rows.lengths, 1)
    same = jnp.cumprod(rows.read == rows.sequences, axis=1).sum(axis=1)
    cache = rows.cache.at(jnp.minimum(rows.cache.index, same))
    cache = _caught_up(extend, cache, rows.sequences, lengths)
    # Drafting reads a decode's state, of which these parts are known.
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
    # The sequences with the draft behind them, as far as there is room.
    places = lengths[:, None] + jnp.arange(setup.gamma)
    row_numbers = jnp.arange(lengths.shape[0])[:, None]
    read = rows.sequences.at[row_numbers, places].set(tokens, mode="drop")
    return tokens, distribution, cache, read


def _caught_up(
  extend: ExtendFn, cache: Cache, sequences: Int[Array, "B S"], lengths: Int[Array, "B"]
) -> Cache:
  """Returns the cache with all but the last two known tokens in it."""
  padded = jnp.pad(sequences, ((0, 0), (0, _BLOCK)))

  def lacks_some(cache):
    return (cache.index < lengths - 2).any()

  def read_more(cache):
    # A row that lacks none reads its last tokens again.
    start = jnp.minimum(cache.index, jnp.maximum(lengths - 2, 0))
    places = start[:, None] + jnp.arange(_BLOCK)
    tokens = jnp.take_along_axis(padded, places, axis=1)
    _, _, cache = extend(cache.at(start), tokens)
    return cache.at(jnp.minimum(start + _BLOCK, jnp.maximum(lengths - 2, 0)))

  return jax.lax.while_loop(lacks_some, read_more, cache)


@jax.jit
def _chosen(is_new: Bool[Array, "B"], new: Cache, old: Cache) -> Cache:
  """Returns the rows of a new cache where they are new."""

  def choose(new, old):
    is_mine = is_new.reshape(-1, *[1] * (new.ndim - 1))
    return jnp.where(is_mine, new, old)

  return jax.tree.map(choose, new, old)
