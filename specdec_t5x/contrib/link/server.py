"""The draft's side of a link: a network, a session, and a gRPC server.

Shapes: B rows, G gamma, K kept tokens, E input length, S sequence buffer, L uniforms
per token.
"""

import functools
from collections.abc import Callable
from concurrent import futures
from typing import Any

import grpc
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from specdec_t5x.api import Model
from specdec_t5x.contrib.link import wire
from specdec_t5x.contrib.link.wire import Ask, Drafts, Setup
from specdec_t5x.contrib.sparse import drafted_sparsely
from specdec_t5x.contrib.truncation import SparseProbs
from specdec_t5x.core.types import Cache
from specdec_t5x.decoding.state import initial_state
from specdec_t5x.native import distributions
from specdec_t5x.network.functional import lacks_encoder, start_decoding
from specdec_t5x.network.net import Net, caught_up, draft_net
from specdec_t5x.network.transformer import check_encoder

# The number of tokens per call when the draft's cache lacks known tokens.
_BLOCK = 16


class Drafting:
  """Drafts for the rows of a session. There is one session at a time.

  Args:
    start: from the parameters, inputs [B, E] and a number of slots to an empty cache.
    net: from the parameters to the network as functions.
    params: the network's parameters.
    vocab_size: the number of the network's tokens.
  """

  def __init__(
    self,
    start: Callable[[Any, Array, int], Cache],
    net: Callable[[Any], Net],
    params: Any,
    vocab_size: int,
  ):
    self.vocab_size = vocab_size
    self._net = net
    self._params = params
    # Compiled once per shape.
    self._start = jax.jit(start, static_argnums=2)
    self._step = jax.jit(self._stepped, static_argnums=1)
    # The session: number, setup, the encoder's inputs [B, E], the cache, and the tokens
    # in the cache [B, S], from the first slot on.
    self._number: int | None = None
    self._setup: Setup | None = None
    self._source: np.ndarray | None = None
    self._cache: Cache | None = None
    self._read: Int[Array, "B S"] | None = None

  @classmethod
  def of(cls, model: Model) -> "Drafting":
    """Returns drafting by a loaded model."""
    network = model.network
    if lacks_encoder(network):
      check_encoder(network.config)

    def start(params, inputs, slots):
      if not inputs.shape[1]:  # An empty input becomes a token of padding.
        inputs = jnp.zeros((len(inputs), 1), jnp.int32)
      (cache,) = start_decoding(network, params, inputs, slots)
      return cache

    vocab_size = network.config.vocab_size
    net = functools.partial(draft_net, network, vocab_size=vocab_size)
    return cls(start, net, jax.device_put(model.params), vocab_size)

  def answer(self, request: bytes) -> bytes:
    """Returns a reply with drafts, or with the reason why there are no drafts.

    An empty message asks for the size of the draft's vocabulary. A message with a setup
    opens a session, and closes the session before.
    """
    try:
      parts = wire.parts_of(request)
      if not parts:
        return wire.message(wire.OK, self.vocab_size)
      number, opening, *parts = parts
      if opening:
        self.open(number, Setup.unpacked(opening))
      if number is None or number != self._number:
        return wire.message(wire.NO_SESSION)
      ask = Ask.unpacked(parts, self._setup)
    except ValueError as error:
      return wire.message(str(error))
    drafts = self.draft(ask)
    return wire.message(wire.OK, *drafts.packed(self._setup, ask.live))

  def open(self, number: int, setup: Setup) -> None:
    """Opens a session, unless the session is open, and compiles all programs."""
    if setup.vocab_size != self.vocab_size:
      raise ValueError(f"the draft's vocabulary has {self.vocab_size} tokens.")
    if (number, setup) == (self._number, self._setup):
      return
    self._number = None
    self._cache = None  # Frees the cache of the session before.
    self._setup = setup
    self._source = np.zeros((setup.rows, setup.inputs), np.int32)
    self._cache = self._started(self._source)
    self._read = np.zeros((setup.rows, setup.slots), np.int32)
    lengths = np.zeros(setup.rows, np.int32)
    uniforms = np.zeros((setup.rows, setup.gamma, setup.draws), np.float32)
    ask = Ask(lengths, self._read, uniforms, None)
    # These requests compile the programs for new rows, and for the arrays of earlier
    # steps.
    for source in (self._source + 1, self._source, None):
      self.draft(ask.replace(source=source))
    self._number = number

  def draft(self, ask: Ask) -> Drafts:
    """Returns a draft of the session's live rows."""
    if ask.source is not None:
      is_new = (ask.source != self._source).any(axis=1)
      if is_new.any():
        self._cache = _chosen(is_new, self._started(ask.source), self._cache)
      self._source = ask.source
    before = self._cache, self._read
    ask = ask.replace(source=None)
    drafts, self._cache, self._read = self._step(self._params, self._setup, before, ask)
    return jax.device_get(drafts)

  def _started(self, source) -> Cache:
    # The cache has room for an overrunning block.
    return self._start(self._params, source, self._setup.slots + _BLOCK)

  def _stepped(self, params, setup: Setup, before, ask: Ask):
    net = self._net(params)
    cache, read = before
    sequences = ask.sequences
    lengths = jnp.maximum(ask.lengths, 1)
    same = jnp.cumprod(read == sequences, axis=1).sum(axis=1)
    cache = cache.at(jnp.minimum(cache.index, same))
    # Drafting reads the last two known tokens itself.
    cache = caught_up(net.extend, cache, sequences, lengths - 2, _BLOCK)
    # Drafting reads only the sequences, lengths and cache of a decode's state.
    keys = jax.random.split(jax.random.key(0), setup.rows)
    state = initial_state(cache, cache, keys, 1, 1)
    tokens, distribution, cache = drafted_sparsely(
      net,
      state.replace(sequences=sequences, lengths=lengths),
      ask.uniforms,
      setup.sampling,
      setup.truncation,
      distributions.adjusted_probs,
    )
    # Appends the draft to the sequences; tokens beyond the buffer are dropped.
    places = lengths[:, None] + jnp.arange(setup.gamma)
    rows = jnp.arange(setup.rows)[:, None]
    read = sequences.at[rows, places].set(tokens, mode="drop")
    # At temperature 0 the token of NaN logits is -1, which a message cannot hold. In
    # sampling a NaN distribution has only zero weights, which mark the error.
    tokens = jnp.maximum(tokens, 0)
    if distribution is None:
      nothing = jnp.zeros((*tokens.shape, 0), jnp.int32)
      distribution = SparseProbs(nothing, nothing)
    return Drafts(tokens, distribution), cache, read


@jax.jit
def _chosen(is_new: Bool[Array, "B"], new: Cache, old: Cache) -> Cache:
  """Returns the cache with new rows from `new` and all other rows from `old`."""

  def choose(new, old):
    return jnp.where(is_new.reshape(-1, *[1] * (new.ndim - 1)), new, old)

  return jax.tree.map(choose, new, old)


def serve(drafting: Drafting, address: str) -> tuple[grpc.Server, int]:
  """Starts a server in a thread of this process, and returns the server and the port.

  Args:
    drafting: the draft.
    address: host:port, or unix:path; port 0 stands for a free port.

  Raises:
    ValueError: if the server can't listen at the address.
  """
  # A single thread answers requests in order, since each request of a session depends
  # on the previous request. Without so_reuseport only one process can have the address;
  # otherwise gRPC lets several processes share the address, and mixes up their rows.
  server = grpc.server(
    futures.ThreadPoolExecutor(max_workers=1),
    options=(*wire.OPTIONS, ("grpc.so_reuseport", 0)),
  )
  answer = grpc.unary_unary_rpc_method_handler(lambda data, _: drafting.answer(data))
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
