"""Drafting by EAGLE-3's layer, one token or one level of a tree per call.

Sources: EAGLE-3, arXiv 2503.01840 (the network is in `network.eagle`); EAGLE-2, arXiv
2406.16858 (the tree).

Shapes: B rows, G drafted nodes, K the depth of a draft plus 1 (the most new positions
between two drafts), P nodes of a level, N scored nodes, L uniforms per decision, D
width of the features, F = 3 D, V vocabulary.
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
from specdec_t5x.decoding.drafter import Context, Drafter
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.draft_model import Stepwise, gamma_knob
from specdec_t5x.drafters.heads import (
  apply_draft,
  check_layer,
  draft_logits,
  features_along,
)


@flax.struct.dataclass
class EagleState:
  """The drafter's state.

  Attributes:
    cache: the layer's cache; entry i belongs to the output's i-th position.
    features: the target's features at three depths, along the last accepted path.
    tree: the tree of the last proposal.
  """

  cache: Cache
  features: Float[Array, "B K F"]
  tree: Tree


@flax.struct.dataclass
class LayerInputs:
  """The inputs of the layer's next call in a draft, apart from the tokens.

  Attributes:
    cache: the layer's cache, including drafted positions.
    feature: the layer's feature at the last position, or at the last level's nodes.
    target: the target's cache, for the target's keys and values of the input.
  """

  cache: Cache
  feature: Float[Array, "B P D"]
  target: Cache


class Eagle(Drafter):
  """The base of drafters that use EAGLE's layer.

  Attributes:
    network: EAGLE's network.
  """

  network: Any

  taps = 3
  reads_target = True
  # The drafter lacks the features of tokens that the target decoded without a draft.
  resumes = False

  @property
  def networks(self) -> Mapping[str, Any]:
    """The drafting network, by name."""
    return {"draft": self.network}

  @property
  def max_positions(self) -> int:
    """The most positions that the layer reads for one draft."""
    return self.tree.size

  def first_tree(self, rows: int) -> Tree:
    """Returns a placeholder tree for the time before the first proposal."""
    del rows
    return self.tree

  def check(self, target: Any) -> None:
    """Raises a ValueError if the layer does not fit the target's features and keys."""
    super().check(target)
    check_layer(target, self.network)

  def start(self, context: Context) -> EagleState:
    """Returns an empty cache and zero features, as the target was not called yet."""
    rows = context.source.shape[0]
    # A block of known positions may overrun the output.
    slots = num_slots(context.max_length, 2 * (self.max_positions + 1))
    width = self.taps * self.network.config.emb_dim
    features = jnp.zeros((rows, self.depth + 1, width))
    cache = self.network.empty_cache(rows, slots)
    return EagleState(cache, features, self.first_tree(rows))

  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], LayerInputs]:
    """Applies the layer at the known positions since the last draft.

    Returns:
      The logits of the first drafted token, and the inputs of the layer's next call.
    """
    cache = state.drafter_state.cache
    features = state.drafter_state.features
    num_positions = state.lengths - state.starts
    first = cache.index
    at = (state.starts + first)[:, None] + jnp.arange(features.shape[1])
    tokens = jnp.take_along_axis(state.sequences, at, axis=1, mode="clip")
    fused = apply_draft(self.network, context, "fused", features)
    embedded = context.target.embed(tokens)
    outputs, feature, cache = apply_draft(
      self.network, context, "extend", cache, fused, embedded, state.target_cache
    )
    last = jnp.maximum(num_positions - first - 1, 0)[:, None, None]
    outputs = jnp.take_along_axis(outputs, last, axis=1)
    feature = jnp.take_along_axis(feature, last, axis=1)
    inputs = LayerInputs(cache.at(num_positions), feature, state.target_cache)
    return draft_logits(self.network, context, outputs)[:, 0], inputs

  def without_early_drafts(self, state: DecodeState, proposal: Proposal) -> Proposal:
    """Returns the proposal, with no valid token before the target's first call.

    Before the first call there is no feature to draft from.
    """
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
  """Samples up to gamma tokens one by one from EAGLE's layer.

  Attributes:
    network: EAGLE's network.
    gamma: the most tokens of a draft.
  """

  network: Any
  gamma: int = gamma_knob()

  def extend(self, context: Context) -> ExtendFn:
    """Returns the layer as a network; `LayerInputs` stands for the cache."""

    def extend(inputs, tokens):
      embedded = context.target.embed(tokens)
      outputs, feature, cache = apply_draft(
        self.network,
        context,
        "extend",
        inputs.cache,
        inputs.feature,
        embedded,
        inputs.target,
      )
      inputs = LayerInputs(cache, feature, inputs.target)
      return draft_logits(self.network, context, outputs), None, inputs

    return extend

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, EagleState]:
    """Drafts a chain, with no valid token before the target's first call."""
    proposal, drafter_state = super().propose(context, state, uniforms)
    return self.without_early_drafts(state, proposal), drafter_state

  def next_state(self, cache: LayerInputs, state: DecodeState) -> EagleState:
    """Returns the state with the cache rolled back to the known positions."""
    known_cache = cache.cache.at(state.lengths - state.starts)
    return state.drafter_state.replace(cache=known_cache)


__getattr__ = moved.names_of(__name__)
