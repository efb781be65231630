"""Drafting many positions in one pass of a layer of its own.

Source: DART, arXiv 2601.19278.

Shapes: B rows, G drafted nodes, N = G + 1, K known positions, one more than drafted
ones, D width of the features, L uniforms a decision.
"""

import dataclasses
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.heads import Headed
from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import GptConfig


@flax.struct.dataclass
class ParallelState:
  """What the drafter carries.

  Attributes:
    cache: of its layer; entry i is of the output's i-th position.
    features: the target's, along the path that was accepted last.
    tree: of the last proposal.
  """

  cache: DecoderCache
  features: Float[Array, "B K D"]
  tree: Tree


@dataclasses.dataclass(frozen=True)
class ParallelDraft(Headed):
  """Drafts by one pass of a parallel drafter."""

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such features, keys and values."""
    super().check(target)
    shape = lambda config: (config.num_heads, config.head_dim)
    config = self.network.config
    own = *shape(config), config.cross_attention
    known = *shape(target.config), not isinstance(target.config, GptConfig)
    if own != known:
      raise ValueError(
        "A parallel drafter attends to its target's keys and values: expected (heads, "
        f"width of one, has an input) = {known}, got {own}. Use one that was trained "
        "on this target."
      )

  def start(self, context: Context) -> ParallelState:
    """Returns an empty cache."""
    cfg, rows = self.network.config, context.source.shape[0]
    # The masks of the last block may overrun the output.
    slots = num_slots(context.max_length, 2 * cfg.count)
    shape = rows, cfg.num_heads, slots, cfg.head_dim
    empty = (jnp.zeros(shape, cfg.dtype),)
    cache = DecoderCache(jnp.zeros(rows, jnp.int32), empty, empty)
    features = jnp.zeros((rows, cfg.count + 1, cfg.emb_dim))
    return ParallelState(cache, features, self.first_tree(rows))

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, ParallelState]:
    """Drafts all nodes, none that counts before the target's first call."""
    own = state.drafter_state
    logits, cache = self._read(context, state)
    proposal = self.proposal(context, state, uniforms, logits)
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
    path = drafter_state.tree.path(verdict.last)[:, : drafter_state.features.shape[1]]
    surplus = drafter_state.features.shape[1] - path.shape[1]
    path = jnp.pad(path, ((0, 0), (0, surplus)))
    features = jnp.take_along_axis(features, path[..., None], axis=1)
    return drafter_state.replace(features=features.astype(jnp.float32))

  def _read(self, context, state):
    """Returns the logits of all drafted positions, and the cache of all known ones."""
    own, cfg = state.drafter_state, self.network.config
    cache, width = own.cache, own.features.shape[1]
    # Position i of the output is the target's feature there and the token after it.
    first, masks = cache.index, cfg.count - 1
    at = (state.starts + first)[:, None] + jnp.arange(width)
    tokens = jnp.take_along_axis(state.sequences, at, axis=1, mode="clip")
    new = state.lengths - state.starts - first
    slots = first[:, None] + jnp.arange(width + masks)
    order = jnp.arange(width + masks) - width
    places = jnp.where(order < 0, slots, (first + new)[:, None] + order)
    all_slots = jnp.arange(cache.num_slots)
    seen_places = jnp.broadcast_to(all_slots, (len(first), cache.num_slots))
    seen_places = seen_places.at[jnp.arange(len(first))[:, None], slots].set(places)
    # Known positions see those before them; masks what is known, and masks before them.
    is_mask = all_slots >= slots[:, width : width + 1]
    is_known = all_slots < (first + new)[:, None]
    before = all_slots <= slots[..., None]
    visible = before & ((order < 0)[:, None] | is_known[:, None] | is_mask[:, None])
    target = state.target_cache
    crossed = cfg.cross_attention
    features, (keys, values) = self.network.apply(
      {"params": context.params["draft"]},
      own.features,
      context.embed(tokens),
      1,
      (places, seen_places),
      visible,
      lambda new: tuple(
        cache_lib.write(buffer[0], x, first)
        for buffer, x in zip((cache.keys, cache.values), new, strict=True)
      ),
      (target.cross_keys[-1], target.cross_values[-1]) if crossed else None,
      target.encoder_mask[:, None] if crossed else None,
      method="drafted",
    )
    last = jnp.maximum(new - 1, 0)[:, None, None]
    at_last = jnp.take_along_axis(features, last, axis=1)
    features = jnp.concatenate([at_last, features[:, width:]], axis=1)
    cache = DecoderCache(first + new, (keys,), (values,))
    return context.logits(features), cache
