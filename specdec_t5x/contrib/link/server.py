"""The draft's side of a link: a network, a session's rows, and a gRPC server.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms
per token.
"""

import functools
from collections.abc import Callable
from concurrent import futures
from typing import Any

import flax.struct
import grpc
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_t5x.api import Model
from specdec_t5x.contrib.link import wire
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
  """The state of a session's rows."""

  source: Int[Array, "B E"]  # The encoder's inputs.
  sequences: Int[Array, "B S"]  # The tokens, the start token first.
  lengths: Int[Array, "B"]  # The number of known tokens.
  cache: Cache
  read: Int[Array, "B S"]  # The tokens in the cache, from the first slot on.


class Drafting:
  """Drafts for the rows of a session.

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
    # Compiled once per shape.
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


class Answers:
  """Answers requests with replies, both bytes. A reply to a bad request says so.

  There is one session. A request that opens a session closes the session before.
  """

  def __init__(self, drafting: Drafting):
    self._drafting = drafting
    self._number: int | None = None
    self._setup: Setup | None = None
    self._rows: Rows | None = None

  def answer(self, request: bytes) -> bytes:
    """Returns drafts, or the reason why there are no drafts.

    Args:
      request: a message of a session with a `wire.Ask`, and with a `Setup` to open the
        session. A message without a `wire.Ask` asks for the size of the draft's
        vocabulary.
    """
    number = 0
    try:
      number, opening, parts = wire.parts_of(request)
      if not parts:
        return wire.message(number, wire.OK, self._drafting.vocab_size)
      if opening:
        self._open(number, Setup.unpacked(opening))
      if number != self._number:
        return wire.message(number, wire.NO_SESSION)
      ask = Ask.unpacked(parts, self._setup)
    except ValueError as error:
      return wire.message(number, str(error))
    drafts, self._rows = self._drafting.draft(self._setup, self._rows, ask)
    return wire.message(number, wire.OK, *drafts.packed(self._setup, ask.live))

  def _open(self, number: int, setup: Setup) -> None:
    """Opens a session, unless the session is open."""
    if setup.vocab_size != self._drafting.vocab_size:
      raise ValueError(
        f"the draft's vocabulary has {self._drafting.vocab_size} tokens."
      )
    if (number, setup) != (self._number, self._setup):
      self._rows = None  # Frees the caches of the session before.
      self._number = None
      self._rows = self._drafting.open(setup)
      self._number = number
      self._setup = setup


def serve(drafting: Drafting, address: str) -> tuple[grpc.Server, int]:
  """Starts a server in a thread of this process.

  Args:
    drafting: the draft.
    address: host:port, or unix:path; port 0 stands for a free port.

  Returns:
    The server, and the server's port.

  Raises:
    ValueError: if the server can't listen at the address.
  """
  answers = Answers(drafting)
  # A single thread answers requests in order, since each request of a session depends
  # on the previous request. Without so_reuseport only one process can have the address;
  # otherwise gRPC lets several processes share the address, and mixes up their rows.
  server = grpc.server(
    futures.ThreadPoolExecutor(max_workers=1),
    options=(*wire.OPTIONS, ("grpc.so_reuseport", 0)),
  )
  answer = grpc.unary_unary_rpc_method_handler(lambda data, _: answers.answer(data))
  handler = grpc.method_handlers_generic_handler(wire.SERVICE, {wire.METHOD: answer})
  server.add_generic_rpc_handlers((handler,))
  try:
    port = server.add_insecure_port(address)
  except RuntimeError as error:
    raise ValueError(
      f"--address: the server can't listen at {address!r} ({error}). Give host:port "
      "with a free port, or unix:/a/path."
    ) from error
  server.start()
  return server, port
