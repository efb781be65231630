"""Drafting by a smaller model of the same family (Leviathan et al., algorithm 1).

Shapes: B rows, N nodes, S sequence buffer, V vocabulary, D width of the features.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.types import Cache, ExtendFn, Verdict
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.stepwise import Stepwise, StepwiseState, gamma_knob


@dataclasses.dataclass(frozen=True)
class DraftModel(Stepwise):
  """Samples up to gamma tokens one by one from a network.

  Attributes:
    network: a network, or a table of n-grams, over the target's vocabulary.
    gamma: the most tokens of a draft.
  """

  network: Any
  gamma: int = gamma_knob()

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafting network, by name."""
    return {"draft": self.network}

  def extend(self, context: Context) -> ExtendFn:
    """Returns the draft network's `extend`."""
    return context.networks["draft"].extend

  def start(self, context: Context) -> StepwiseState:
    """Returns a state with the draft's initial cache."""
    cache = context.networks["draft"].start()
    return StepwiseState(cache, jnp.zeros_like(cache.index))

  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Scores the known tokens that the cache lacks, many after a pause in drafting."""
    extend = self.extend(context)
    cache = state.drafter_state.cache
    if context.policy.may_rest:
      return caught_up(extend, cache, state.sequences, state.lengths)
    return read_last(extend, cache, state.sequences, state.lengths, context.behind)

  def next_state(self, cache: Cache, state: DecodeState) -> StepwiseState:
    """Returns the state with the draft's cache, and the number of known tokens."""
    return StepwiseState(cache, state.lengths)

  def commit(
    self,
    context: Context,
    drafter_state: StepwiseState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> StepwiseState:
    """Returns the state with the cache rolled back to the accepted tokens."""
    del context, features
    cache = drafter_state.cache
    index = jnp.minimum(cache.index, drafter_state.num_known + verdict.last)
    return drafter_state.replace(cache=cache.at(index))


def caught_up(
  extend: ExtendFn, cache: Cache, sequences: Int[Array, "B S"], lengths: Int[Array, "B"]
) -> tuple[Float[Array, "B V"], Cache]:
  """Scores all tokens that the cache lacks, two per call; returns as `read_last`."""

  def lacks_tokens(carry):
    _, cache = carry
    return (cache.index < lengths).any()

  def read_two(carry):
    _, cache = carry
    # A row with a complete cache reads the row's last token again.
    start = jnp.minimum(cache.index, lengths - 1)
    tokens = jnp.take_along_axis(sequences, start[:, None] + jnp.arange(2), axis=1)
    logits, _, cache = extend(cache.at(start), tokens)
    last = jnp.minimum(lengths - 1 - start, 1)[:, None, None]
    logits = jnp.take_along_axis(logits, last, axis=1)[:, 0]
    return logits, cache.at(jnp.minimum(start + 2, lengths))

  shape = jax.eval_shape(lambda: read_two((None, cache))[0])
  logits = jnp.zeros(shape.shape, shape.dtype)
  return jax.lax.while_loop(lacks_tokens, read_two, (logits, cache))


def read_last(
  extend: ExtendFn,
  cache: Cache,
  sequences: Int[Array, "B S"],
  lengths: Int[Array, "B"],
  count: int = 2,
) -> tuple[Float[Array, "B V"], Cache]:
  """Scores the last `count` known tokens in one call.

  Args:
    extend: the draft.
    cache: the draft's cache.
    sequences: the known tokens.
    lengths: the number of known tokens.
    count: the most last known tokens that the cache may lack (`Context.behind`).

  Returns:
    The logits after the last known token, and the cache with all known tokens.
  """
  # The last drafted token of a fully accepted block was never fed back, so the cache
  # may lack the last two known tokens. Only outer speculations make the cache lack more
  # tokens (see `count`). The last `count` tokens are fed. If fewer tokens are known,
  # surplus slots hold garbage until drafted tokens overwrite the garbage.
  start = jnp.maximum(lengths - count, 0)
  window = start[:, None] + jnp.arange(count)
  tokens = jnp.take_along_axis(sequences, window, axis=1)
  logits, _, cache = extend(cache.at(start), tokens)
  last = (lengths - 1 - start)[:, None, None]
  return jnp.take_along_axis(logits, last, axis=1)[:, 0], cache.at(lengths)
