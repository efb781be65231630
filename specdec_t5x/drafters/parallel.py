"""Drafting many positions in one pass of a layer of its own.

Source: DART, arXiv 2601.19278.

Shapes: B rows, G drafted nodes, N = G + 1, K known positions, one more than drafted
ones, D width of the features, L uniforms a decision.
"""

import dataclasses
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Cache, Proposal, Verdict
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.heads import Headed, check_layer, features_along


@flax.struct.dataclass
class ParallelState:
  """What the drafter carries.

  Attributes:
    cache: of its layer; entry i is of the output's i-th position.
    features: the target's, along the path that was accepted last.
    tree: of the last proposal.
    source: the row's input, which `Pruned` trees look at.
  """

  cache: Cache
  features: Float[Array, "B K D"]
  tree: Tree
  source: Int[Array, "B E"]


@dataclasses.dataclass(frozen=True)
class ParallelDraft(Headed):
  """Drafts by one pass of a parallel drafter."""

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such features, keys and values."""
    super().check(target)
    check_layer(target, self.network)

  def start(self, context: Context) -> ParallelState:
    """Returns an empty cache and no features: the target was not called yet."""
    cfg, rows = self.network.config, context.source.shape[0]
    # The masks of the last block may overrun the output.
    slots = num_slots(context.max_length, 2 * cfg.count)
    cache = self.network.empty_cache(rows, slots)
    features = jnp.zeros((rows, cfg.count + 1, cfg.emb_dim))
    return ParallelState(cache, features, self.first_tree(rows), context.source)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, ParallelState]:
    """Drafts all nodes, none that counts before the target's first call."""
    own = state.drafter_state
    features, cache = self._read(context, state)
    proposal = self.proposal(context, state, uniforms, features)
    has_new = cache.index > own.cache.index
    proposal = proposal.replace(is_valid=proposal.is_valid & has_new[:, None])
    return proposal, own.replace(cache=cache, tree=proposal.tree)

  def commit(
    self,
    context: Context,
    drafter_state: ParallelState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> ParallelState:
    """Returns the state with the features of the accepted path."""
    del context
    width = drafter_state.features.shape[1]
    features = features_along(drafter_state.tree, verdict, features, width)
    return drafter_state.replace(features=features)

  def _read(self, context, state):
    """Returns the features of all drafted positions, and the cache of known ones."""
    own = state.drafter_state
    first, width = own.cache.index, own.features.shape[1]
    # Position i of the output is the target's feature there and the token after it.
    at = (state.starts + first)[:, None] + jnp.arange(width)
    tokens = jnp.take_along_axis(state.sequences, at, axis=1, mode="clip")
    embedded, new = context.target.embed(tokens), state.lengths - state.starts - first
    known = own.cache, own.features, embedded, new, state.target_cache
    return self.apply(context, "extend", *known)
