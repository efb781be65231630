"""Drafting by a smaller model of the same family (Leviathan et al., algorithm 1)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.distributions import Sampling, draw
from specdec_t5x.core.types import Cache, ExtendFn, Proposal, Verdict


@dataclasses.dataclass(frozen=True)
class DraftModel:
  """Samples gamma tokens one by one from a draft model; its state is the cache.

  Attributes:
    extend: the draft model.
    gamma: tokens a proposal.
    sampling: the adjustment that the target's law gets too.
  """

  extend: ExtendFn
  gamma: int
  sampling: Sampling

  def propose(
    self,
    state: Cache,
    sequences: Int[Array, "B S"],
    lengths: Int[Array, "B"],
    uniforms: Float[Array, "B G L"],
  ) -> tuple[Proposal, Cache]:
    """Drafts gamma tokens; see `core.types.Drafter`."""
    logits, cache = self._read_last_two(state, sequences, lengths)
    first = draw(logits, self.sampling, uniforms[:, 0])

    def draft_next(carry, uniforms):
      cache, token = carry
      logits, _, cache = self.extend(cache, token[:, None])
      token, probs = draw(logits[:, 0], self.sampling, uniforms)
      return (cache, token), (token, probs)

    (cache, _), rest = jax.lax.scan(
      draft_next,
      (cache, first[0]),
      uniforms[:, 1:].swapaxes(0, 1),
      length=self.gamma - 1,
    )
    tokens, probs = jax.tree.map(
      lambda head, tail: jnp.concatenate([head[None], tail]).swapaxes(0, 1), first, rest
    )
    num_valid = jnp.full(lengths.shape, self.gamma, jnp.int32)
    return Proposal(tokens, probs, num_valid), cache

  def commit(
    self, state: Cache, verdict: Verdict, features: Float[Array, "B K D"]
  ) -> Cache:
    """Returns the cache as it is: `propose` goes by the lengths, not by its index."""
    del verdict, features
    return state

  def _read_last_two(self, cache, sequences, lengths):
    # The last drafted token of a fully accepted block was never fed back, so the cache
    # may lack the last two known tokens, never more: feed both. With one token known,
    # the second slot holds garbage until the first drafted token overwrites it.
    start = jnp.maximum(lengths - 2, 0)
    window = start[:, None] + jnp.arange(2)
    tokens = jnp.take_along_axis(sequences, window, axis=1)
    logits, _, cache = self.extend(cache.at(start), tokens)
    last = (lengths - 1 - start)[:, None, None]
    return jnp.take_along_axis(logits, last, axis=1)[:, 0], cache.at(lengths)
