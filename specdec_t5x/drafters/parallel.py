"""Drafting many positions in one pass of a separate layer.

Source: DART, arXiv 2601.19278.

Shapes: B rows, G drafted nodes, N = G + 1, K the number of drafted positions plus 1, D
width of the features, E input length, L uniforms per decision.
"""

import dataclasses

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.heads import (
  Headed,
  LayerDraft,
  LayerState,
  apply_draft,
)


@flax.struct.dataclass
class ParallelState(LayerState):
  """The drafter's state.

  Attributes:
    source: the rows' inputs, which `Pruned` trees read.
  """

  source: Int[Array, "B E"]


@dataclasses.dataclass(frozen=True)
class ParallelDraft(LayerDraft, Headed):
  """Drafts by one pass of a parallel drafter."""

  def start(self, context: Context) -> ParallelState:
    """Returns an empty cache and zero features, as the target was not called yet."""
    cfg = self.network.config
    rows = context.source.shape[0]
    # The masks of the last block may overrun the output.
    slots = num_slots(context.max_length, 2 * cfg.count)
    cache = self.network.empty_cache(rows, slots)
    features = jnp.zeros((rows, cfg.count + 1, cfg.emb_dim))
    return ParallelState(cache, features, self.first_tree(rows), context.source)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, ParallelState]:
    """Drafts all nodes, with no valid node before the target's first call."""
    features, cache = self._read(context, state)
    proposal = self.proposal(context, state, uniforms, features)
    drafter_state = state.drafter_state.replace(cache=cache, tree=proposal.tree)
    return self.without_early_drafts(state, proposal), drafter_state

  def _read(self, context, state):
    """Returns the features of drafted positions, and the cache of known positions."""
    cache = state.drafter_state.cache
    features = state.drafter_state.features
    # The entry of output position i combines the target's feature at i and the next
    # token.
    embedded = self.next_embedded(context, state)
    num_new = state.lengths - state.starts - cache.index
    return apply_draft(
      self.network,
      context,
      "extend",
      cache,
      features,
      embedded,
      num_new,
      state.target_cache,
    )
