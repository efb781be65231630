"""The draft's side of a link: a network, and what it knows of each row.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms a
token.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_t5x.api import Model
from specdec_t5x.contrib.link.drafter import Terms
from specdec_t5x.contrib.link.wire import Ask, Drafts, Setup, between
from specdec_t5x.contrib.sparse import drafted_sparsely
from specdec_t5x.core.types import Cache, ExtendFn
from specdec_t5x.decoding.state import initial_state
from specdec_t5x.native import distributions
from specdec_t5x.network.functional import extend_fn, lacks_encoder, start_decoding
from specdec_t5x.network.transformer import check_encoder

# Tokens that are read at once where the draft has missed some.
_BLOCK = 16


@dataclasses.dataclass(frozen=True)
class Draft:
  """A network that drafts, and its parameters.

  Attributes:
    start: from the parameters, inputs [B, E] and a number of slots to an empty cache.
    extend: from the parameters to what scores tokens.
    params: the parameters.
    vocab_size: its tokens.
  """

  start: Callable[[Any, Array, int], Cache]
  extend: Callable[[Any], ExtendFn]
  params: Any
  vocab_size: int

  @classmethod
  def of(cls, model: Model) -> "Draft":
    """Returns a loaded model as a draft."""
    network = model.network
    if lacks_encoder(network):
      check_encoder(network.config)

    def start(params, source, slots):
      return start_decoding(network, params, source, slots)[1]

    extend = lambda params: extend_fn(network, params)
    params = jax.device_put(model.params)
    return cls(start, extend, params, network.config.vocab_size)


@flax.struct.dataclass
class Rows:
  """What is known of a session's rows.

  Attributes:
    source: what the encoder read.
    sequences: the tokens, the start token first.
    lengths: how many of them are known.
    cache: the network's.
    read: what the cache holds, from its first slot on.
  """

  source: Int[Array, "B E"]
  sequences: Int[Array, "B S"]
  lengths: Int[Array, "B"]
  cache: Cache
  read: Int[Array, "B S"]


class Drafting:
  """Drafts for sessions, each of rows of its own.

  Args:
    draft: what drafts.
  """

  def __init__(self, draft: Draft):
    self.vocab_size = draft.vocab_size
    self._draft = draft
    # Compiled once for each shape, for all sessions.
    self._start = jax.jit(self._started, static_argnums=2)
    self._step = jax.jit(self._stepped, static_argnums=2)

  def size(self, setup: Setup) -> int:
    """Returns the bytes that a session's cache takes; nothing is made."""
    source = jax.ShapeDtypeStruct((setup.rows, setup.inputs), np.int32)
    cache = self._start.eval_shape(self._draft.params, source, setup.slots)
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(cache))

  def open(self, setup: Setup) -> Rows:
    """Returns the rows of a session that nothing is known of.

    All programs are compiled by then.
    """
    none = lambda *shape: np.zeros((setup.rows, *shape), np.int32)
    source, terms = none(setup.inputs), setup.terms
    cache = self._start(self._draft.params, source, setup.slots)
    rows = Rows(source, none(setup.slots), none(), cache, none(setup.slots))
    uniforms = np.zeros((setup.rows, terms.gamma, terms.draws), np.float32)
    _, _, new, read = self._step(self._draft.params, rows, terms, uniforms)
    # What a step returns goes into the next one.
    again = rows.replace(
      cache=_chosen(np.ones(setup.rows, bool), cache, new), read=read
    )
    self._step(self._draft.params, again, terms, uniforms)
    return rows

  def draft(self, setup: Setup, rows: Rows, ask: Ask) -> tuple[Drafts, Rows]:
    """Returns a draft of the live rows, and the rows after it.

    Raises:
      ValueError: where less is known than the question takes for granted.
    """
    if (ask.known > rows.lengths)[ask.live].any():
      raise ValueError("The rows are taken to know more than they were told.")
    rows = self._told(setup, rows, ask)
    params, uniforms = self._draft.params, ask.uniforms.astype(np.float32)
    tokens, distribution, cache, read = self._step(params, rows, setup.terms, uniforms)
    # A distribution that is no number has no weights, which says so; greedily it is no
    # token.
    tokens = np.maximum(np.asarray(tokens), 0)
    distributions = (
      () if distribution is None else (distribution.tokens, distribution.weights)
    )
    none = np.zeros((*tokens.shape, 0), np.int64)
    drafts = Drafts(
      tokens, *(map(np.asarray, distributions) if distributions else (none, none))
    )
    return drafts, rows.replace(cache=cache, read=read)

  def _told(self, setup, rows, ask):
    """Returns the rows with what the question says."""
    is_new = ask.live & (ask.known == 0)
    source = np.where(is_new[:, None], ask.source, rows.source).astype(np.int32)
    is_told = between(ask.known, ask.lengths, setup.slots)
    sequences = np.where(is_told, ask.sequences, rows.sequences).astype(np.int32)
    lengths = np.where(ask.live, ask.lengths, rows.lengths).astype(np.int32)
    cache = rows.cache
    if is_new.any():
      fresh = self._start(self._draft.params, source, setup.slots)
      cache = _chosen(is_new, fresh, cache)
    return Rows(source, sequences, lengths, cache, rows.read)

  def _started(self, params, source, slots):
    # Room for a block that overruns, and for what never is no input.
    source = source if source.shape[1] else jnp.zeros((source.shape[0], 1), jnp.int32)
    return self._draft.start(params, source, slots + _BLOCK)

  def _stepped(self, params, rows: Rows, terms: Terms, uniforms):
    extend = self._draft.extend(params)
    lengths = jnp.maximum(rows.lengths, 1)
    same = jnp.cumprod(rows.read == rows.sequences, axis=1).sum(axis=1)
    cache = rows.cache.at(jnp.minimum(rows.cache.index, same))
    cache = _caught_up(extend, cache, rows.sequences, lengths)
    state = _state(rows, lengths, cache)
    given = terms.sampling, terms.truncation, distributions.adjusted_probs
    tokens, distribution, cache = drafted_sparsely(extend, state, uniforms, *given)
    read = _written(rows.sequences, tokens, lengths)
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


def _state(rows, lengths, cache):
  """Returns the rows as a decode's state, of which drafting reads what it has."""
  count = lengths.shape[0]
  keys = jax.random.split(jax.random.key(0), count)
  state = initial_state(cache, cache, keys, 1, 1)
  return state.replace(sequences=rows.sequences, lengths=lengths)


def _written(
  sequences: Int[Array, "B S"], tokens: Int[Array, "B G"], lengths: Int[Array, "B"]
) -> Int[Array, "B S"]:
  """Returns the sequences with a draft behind them, as far as there is room."""
  rows = jnp.arange(lengths.shape[0])[:, None]
  places = lengths[:, None] + jnp.arange(tokens.shape[1])
  return sequences.at[rows, places].set(tokens, mode="drop")


@jax.jit
def _chosen(is_new: Bool[Array, "B"], new: Cache, old: Cache) -> Cache:
  """Returns the rows of a new cache where they are new."""

  def choose(new, old):
    is_mine = is_new.reshape(-1, *[1] * (new.ndim - 1))
    return jnp.where(is_mine, new, old)

  return jax.tree.map(choose, new, old)
