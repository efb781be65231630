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
from specdec_t5x.drafters.stepwise import (
  Stepwise,
  StepwiseState,
  gamma_knob,
)


@dataclasses.dataclass(frozen=True)
class DraftModel(Stepwise):
  """Samples up to gamma tokens one by one from a network.

  Attributes:
    network: drafts over the target's vocabulary: a network, or a table of n-grams.
    gamma: most tokens a draft.
  """

  network: Any
  gamma: int = gamma_knob()

  @property
  def networks(self) -> Mapping[str, Any]:
    """The network that drafts, by its name."""
    return {"draft": self.network}

  def extend(self, context: Context) -> ExtendFn:
    """Returns the draft network, over its own cache."""
    return context.networks["draft"].extend

  def start(self, context: Context) -> StepwiseState:
    """Returns the draft's first cache."""
    cache = context.networks["draft"].start()
    return StepwiseState(cache, jnp.zeros_like(cache.index))

  def read(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Reads what the cache lacks: the last tokens, and those of rests."""
    extend, cache = self.extend(context), state.drafter_state.cache
    if context.policy.may_rest:
      return caught_up(extend, cache, state.sequences, state.lengths)
    return read_last(extend, cache, state.sequences, state.lengths, context.behind)

  def carried(self, cache: Cache, state: DecodeState) -> StepwiseState:
    """Returns the cache, and how long the rows were."""
    return StepwiseState(cache, state.lengths)

  def commit(
    self,
    context: Context,
    drafter_state: StepwiseState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> StepwiseState:
    """Returns the state with a cache of the tokens that stand."""
    del context, features
    own = drafter_state
    held = jnp.minimum(own.cache.index, own.known + verdict.last)
    return own.replace(cache=own.cache.at(held))


def caught_up(
  extend: ExtendFn, cache: Cache, sequences: Int[Array, "B S"], lengths: Int[Array, "B"]
) -> tuple[Float[Array, "B V"], Cache]:
  """Returns what `read_last` does, of a cache that may lack any number of tokens."""

  def lacks_some(carry):
    return (carry[1].index < lengths).any()

  def read_two(carry):
    cache = carry[1]
    # A row that lacks none reads its last token again.
    start = jnp.minimum(cache.index, lengths - 1)
    tokens = jnp.take_along_axis(sequences, start[:, None] + jnp.arange(2), axis=1)
    new, _, cache = extend(cache.at(start), tokens)
    last = jnp.minimum(lengths - 1 - start, 1)[:, None, None]
    new = jnp.take_along_axis(new, last, axis=1)[:, 0]
    return new, cache.at(jnp.minimum(start + 2, lengths))

  shape = jax.eval_shape(lambda: read_two((None, cache))[0])
  start = jnp.zeros(shape.shape, shape.dtype), cache
  return jax.lax.while_loop(lacks_some, read_two, start)


def read_last(
  extend: ExtendFn,
  cache: Cache,
  sequences: Int[Array, "B S"],
  lengths: Int[Array, "B"],
  count: int = 2,
) -> tuple[Float[Array, "B V"], Cache]:
  """Returns the draft's logits after the known tokens, and its cache up to there.

  Args:
    extend: the draft.
    cache: the draft's.
    sequences: the known tokens.
    lengths: how many there are.
    count: how many of the last of them the cache may lack (`Context.behind`).
  """
  # The last drafted token of a fully accepted block was never fed back, so the cache
  # may lack the last two known tokens, never more, but for what speculations above
  # added: feed all that may be lacking. With fewer tokens known, the other slots hold
  # garbage until drafted tokens overwrite it.
  start = jnp.maximum(lengths - count, 0)
  window = start[:, None] + jnp.arange(count)
  tokens = jnp.take_along_axis(sequences, window, axis=1)
  logits, _, cache = extend(cache.at(start), tokens)
  last = (lengths - 1 - start)[:, None, None]
  return jnp.take_along_axis(logits, last, axis=1)[:, 0], cache.at(lengths)
