"""Drafting many positions in one pass of a separate layer.

Source: DART, arXiv 2601.19278.

Shapes: B rows, G drafted nodes, N = G + 1, K the number of drafted positions plus 1, D
width of the features, E input length, L uniforms per decision.
"""

import dataclasses
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Cache, Proposal, Verdict
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.heads import Headed, check_layer, features_along


@flax.struct.dataclass
class ParallelState:
  """The drafter's state.

  Attributes:
    cache: the layer's cache; entry i belongs to the output's i-th position.
    features: the target's features along the last accepted path.
    tree: the tree of the last proposal.
    source: the rows' inputs, which `Pruned` trees read.
  """

  cache: Cache
  features: Float[Array, "B K D"]
  tree: Tree
  source: Int[Array, "B E"]


@dataclasses.dataclass(frozen=True)
class ParallelDraft(Headed):
  """Drafts by one pass of a parallel drafter."""

  def check(self, target: Any) -> None:
    """Raises a ValueError if the layer does not fit the target's features and keys."""
    super().check(target)
    check_layer(target, self.network)

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
    drafter_state = state.drafter_state
    features, cache = self._read(context, state)
    proposal = self.proposal(context, state, uniforms, features)
    has_new = cache.index > drafter_state.cache.index
    proposal = proposal.replace(is_valid=proposal.is_valid & has_new[:, None])
    return proposal, drafter_state.replace(cache=cache, tree=proposal.tree)

  def commit(
    self,
    context: Context,
    drafter_state: ParallelState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> ParallelState:
    """Returns the state with the target's features along the accepted path."""
    del context
    width = drafter_state.features.shape[1]
    features = features_along(drafter_state.tree, verdict, features, width)
    return drafter_state.replace(features=features)

  def _read(self, context, state):
    """Returns the features of drafted positions, and the cache of known positions."""
    cache = state.drafter_state.cache
    features = state.drafter_state.features
    first = cache.index
    # The entry of output position i combines the target's feature at i and the next
    # token.
    at = (state.starts + first)[:, None] + jnp.arange(features.shape[1])
    tokens = jnp.take_along_axis(state.sequences, at, axis=1, mode="clip")
    embedded = context.target.embed(tokens)
    num_new = state.lengths - state.starts - first
    return self.apply(
      context, "extend", cache, features, embedded, num_new, state.target_cache
    )
