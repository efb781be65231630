"""Drafting by EAGLE-3's layer, one token per call.

Source: EAGLE-3, arXiv 2503.01840 (the network is in `network.eagle`).

Shapes: B rows, G drafted tokens, L uniforms per decision, D width of the features, V
vocabulary.
"""

import dataclasses
from typing import Any

import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.core.types import Cache, ExtendFn, Proposal
from specdec_t5x.decoding.contracts import Context, Stops, Traits
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.draft_model import Stepwise, gamma_knob
from specdec_t5x.drafters.heads import LayerDraft, LayerState, without_early_drafts


@flax.struct.dataclass
class LayerInputs:
  """The inputs of the layer's next call in a draft, apart from the tokens.

  Attributes:
    cache: the layer's cache, including drafted positions.
    feature: the layer's feature at the last position.
    target: the target's cache, for the target's keys and values of the input.
  """

  cache: Cache
  feature: Float[Array, "B 1 D"]
  target: Cache


@dataclasses.dataclass(frozen=True)
class EagleDraft(LayerDraft, Stepwise):
  """Samples up to gamma tokens one by one from EAGLE's layer.

  Attributes:
    network: EAGLE's network.
    gamma: the most tokens of a draft.
  """

  network: Any
  gamma: int | None = gamma_knob()

  # The drafter lacks the features of tokens that the target decoded without a draft.
  traits = Traits(
    stops=Stops.AT_LENGTH, resumes=False, taps=3, reads_target=True, auto="named"
  )

  @property
  def tree(self) -> Tree:
    """A chain of gamma tokens, by default of as many as the training unrolled."""
    return chain(self.gamma or self.network.config.count)

  def start(self, context, caches, source) -> LayerState:
    """Returns an empty cache and zero features, as the target was not called yet."""
    rows, size = source.shape[0], self.tree.size + 1
    # A block of known positions may overrun the output.
    slots = num_slots(context.max_length, 2 * size)
    width = self.traits.taps * self.network.config.emb_dim
    features = jnp.zeros((rows, size, width))
    cache = self.network.empty_cache(rows, slots)
    return LayerState(cache, features, self.tree)

  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], LayerInputs]:
    """Applies the layer at the known positions since the last draft.

    Returns:
      The logits of the first drafted token, and the inputs of the layer's next call.
    """
    cache = state.drafter_state.cache
    num_positions = state.lengths - state.starts
    first = cache.index
    features = state.drafter_state.features
    fused = self.apply(context, "fused", features)
    embedded = self.next_embedded(context, state)
    outputs, feature, cache = self.apply(
      context, "extend", cache, fused, embedded, state.target_cache
    )
    last = jnp.maximum(num_positions - first - 1, 0)[:, None, None]
    outputs = jnp.take_along_axis(outputs, last, axis=1)
    feature = jnp.take_along_axis(feature, last, axis=1)
    inputs = LayerInputs(cache.at(num_positions), feature, state.target_cache)
    return self.logits(context, outputs)[:, 0], inputs

  def extend(self, context: Context) -> ExtendFn:
    """Returns the layer as a network; `LayerInputs` stands for the cache."""

    def extend(inputs, tokens):
      embedded = context.target.embed(tokens)
      outputs, feature, cache = self.apply(
        context, "extend", inputs.cache, inputs.feature, embedded, inputs.target
      )
      inputs = LayerInputs(cache, feature, inputs.target)
      return self.logits(context, outputs), None, inputs

    return extend

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, LayerState]:
    """Drafts a chain, with no valid token before the target's first call."""
    proposal, drafter_state = super().propose(context, state, uniforms)
    return without_early_drafts(state, proposal), drafter_state

  def next_state(self, cache: LayerInputs, state: DecodeState) -> LayerState:
    """Returns the state with the cache rolled back to the known positions."""
    known_cache = cache.cache.at(state.lengths - state.starts)
    return state.drafter_state.replace(cache=known_cache)
