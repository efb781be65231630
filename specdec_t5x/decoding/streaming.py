"""A decode whose turns the host starts, so that outputs can be read as they grow.

A callback inside the loop would hide the errors of the caller's code, and JAX keeps no
program with a callback between processes.

Shapes: B rows, I inputs, R outputs of all inputs, E input length, T output length.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.types import EndTokens
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.decoder import Decoder, begin
from specdec_t5x.decoding.state import Decoded
from specdec_t5x.network.net import run_if

# Gets the places of the rows' outputs among all outputs, R for a row without an output;
# the outputs so far; and their lengths.
WatchFn = Callable[[Int[Array, "B"], Int[Array, "B T"], Int[Array, "B"]], Any]


# Compared by identity: JAX would otherwise hash the decoder for every turn.
@dataclasses.dataclass(frozen=True, eq=False)
class Streamed:
  """The programs of a decode by turns; the attributes are as for `Decoder.decode`."""

  decoder: Decoder
  sampling: Sampling
  max_length: int
  eos_id: EndTokens

  def decode(
    self,
    params: Mapping[str, Any],
    inputs: Int[Array, "I E"],
    keys: Key[Array, "R"],
    is_wanted: Bool[Array, "I"],
    policy_state: Any,
    watch: WatchFn,
  ) -> Decoded:
    """Returns the result of `Decoder.decode`, and calls `watch` after each turn.

    A turn has at most one iteration with drafts and one without.
    """
    state, queue = self._begin(params, inputs, keys, is_wanted, policy_state)
    is_unfinished = True
    while is_unfinished:
      turn = self._turn(params, state, queue)
      state, queue, is_unfinished, places, tokens, lengths = turn
      watch(places, tokens, lengths)
    return self._end(state, queue)

  def _context(self, params, rows):
    return self.decoder.context(
      params, rows, self.sampling, self.max_length, self.eos_id
    )

  @functools.partial(jax.jit, static_argnums=0)
  def _begin(self, params, inputs, keys, is_wanted, policy_state):
    ctx = self._context(params, self.decoder.rows_at_once(len(keys)))
    return begin(self.decoder, ctx, inputs, keys, is_wanted, policy_state)

  # The caches are updated in place.
  @functools.partial(jax.jit, static_argnums=0, donate_argnums=(2, 3))
  def _turn(self, params, state, queue):
    ctx = self._context(params, state.lengths.size)
    state, queue = loop.turn(ctx, state, queue, _once, self.decoder.observer)
    places = jnp.arange(state.lengths.size)
    if queue is not None:
      places = queue.places[queue.holds]
    is_unfinished = loop.is_unfinished((state, queue))
    tokens = state.decoded(self.max_length).tokens
    return state, queue, is_unfinished, places, tokens, state.lengths - state.starts

  @functools.partial(jax.jit, static_argnums=0)
  def _end(self, state, queue):
    return state.decoded(self.max_length) if queue is None else queue.decoded(state)


def _once(condition, body, carry):
  return run_if(condition(carry), body, carry)
