"""Drafting by EAGLE-3's layer, a token, or a level of a tree, after the other.

Sources: EAGLE-3, arXiv 2503.01840, whose network is `network.eagle`'s; the tree is
EAGLE-2's, arXiv 2406.16858.

Shapes: B rows, G drafted nodes, K known positions at most between two drafts, one more
than a draft is deep, P nodes of a level, N scored nodes, L uniforms a decision, D width
of the features, F = 3 D, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x import moved
from specdec_t5x.core.tree import Tree
from specdec_t5x.core.types import Cache, ExtendFn, Proposal, Verdict
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.drafter import Drafter
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.heads import (
  apply_draft,
  check_layer,
  draft_logits,
  features_along,
)
from specdec_t5x.drafters.stepwise import Stepwise, gamma_knob


@flax.struct.dataclass
class EagleState:
  """What the drafter carries.

  Attributes:
    cache: of its layer; entry i is of the output's i-th position.
    features: the target's, of three depths, along the path that was accepted last.
    tree: of the last proposal.
  """

  cache: Cache
  features: Float[Array, "B K F"]
  tree: Tree


@flax.struct.dataclass
class Going:
  """What a draft goes on from.

  Attributes:
    cache: of the layer, drafted positions included.
    feature: its own at the last of them, or at the last level's nodes.
    target: the target's cache, for its keys of the input.
  """

  cache: Cache
  feature: Float[Array, "B P D"]
  target: Cache


class Eagle(Drafter):
  """What drafters by EAGLE's layer have in common.

  Attributes:
    network: EAGLE's.
  """

  network: Any

  taps = 3
  reads_target = True
  # Of tokens that the target decoded by itself it lacks the features.
  resumes = False

  @property
  def networks(self) -> Mapping[str, Any]:
    """The network that drafts, by its name."""
    return {"draft": self.network}

  @property
  def grown(self) -> int:
    """The most positions that its layer reads for one draft."""
    return self.tree.size

  def first_tree(self, rows: int) -> Tree:
    """Returns a tree that no proposal had."""
    del rows
    return self.tree

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such features, keys and values."""
    super().check(target)
    check_layer(target, self.network)

  def start(self, context: Context) -> EagleState:
    """Returns an empty cache and no features: the target was not called yet."""
    cfg, rows = self.network.config, context.source.shape[0]
    # A block of known positions may overrun the output.
    slots = num_slots(context.max_length, 2 * (self.grown + 1))
    features = jnp.zeros((rows, self.depth + 1, self.taps * cfg.emb_dim))
    cache = self.network.empty_cache(rows, slots)
    return EagleState(cache, features, self.first_tree(rows))

  def read(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Going]:
    """Reads the positions that the target has been at since, by its features."""
    own, known = state.drafter_state, state.lengths - state.starts
    first = own.cache.index
    at = (state.starts + first)[:, None] + jnp.arange(own.features.shape[1])
    tokens = jnp.take_along_axis(state.sequences, at, axis=1, mode="clip")
    features = apply_draft(self.network, context, "fused", own.features)
    embedded = context.target.embed(tokens)
    given = own.cache, features, embedded, state.target_cache
    found, feature, cache = apply_draft(self.network, context, "extend", *given)
    last = jnp.maximum(known - first - 1, 0)[:, None, None]
    found, feature = (jnp.take_along_axis(x, last, axis=1) for x in (found, feature))
    going = Going(cache.at(known), feature, state.target_cache)
    return draft_logits(self.network, context, found)[:, 0], going

  def known(self, state: DecodeState, proposal: Proposal) -> Proposal:
    """Returns a proposal none of whose tokens counts before the target's first call."""
    has_new = state.lengths - state.starts > state.drafter_state.cache.index
    return proposal.replace(is_valid=proposal.is_valid & has_new[:, None])

  def commit(
    self,
    context: Context,
    drafter_state: EagleState,
    verdict: Verdict,
    features: Float[Array, "B N F"],
  ) -> EagleState:
    """Returns the state with the target's features along the accepted path."""
    del context
    width = drafter_state.features.shape[1]
    features = features_along(drafter_state.tree, verdict, features, width)
    return drafter_state.replace(features=features)


@dataclasses.dataclass(frozen=True)
class EagleDraft(Eagle, Stepwise):
  """Samples up to gamma tokens one by one, each from its own distribution.

  Attributes:
    network: EAGLE's.
    gamma: most tokens a draft.
  """

  network: Any
  gamma: int = gamma_knob()

  def extend(self, context: Context) -> ExtendFn:
    """Returns what drafts: it reads a token beside its own feature."""

    def extend(going, tokens):
      embedded = context.target.embed(tokens)
      given = going.cache, going.feature, embedded, going.target
      found, feature, cache = apply_draft(self.network, context, "extend", *given)
      going = Going(cache, feature, going.target)
      return draft_logits(self.network, context, found), None, going

    return extend

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, EagleState]:
    """Drafts; no token counts before the target's first call."""
    proposal, own = super().propose(context, state, uniforms)
    return self.known(state, proposal), own

  def carried(self, cache: Going, state: DecodeState) -> EagleState:
    """Returns the cache of the positions that the target has been at."""
    known = cache.cache.at(state.lengths - state.starts)
    return state.drafter_state.replace(cache=known)


__getattr__ = moved.names_of(__name__)
