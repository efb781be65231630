"""Drafting by EAGLE-3's layer, a token after the other.

Source: EAGLE-3, arXiv 2503.01840; the network is `network.eagle`'s.

Shapes: B rows, G gamma, K = G + 1 known positions at most between two drafts, L
uniforms a decision, D width of the features, F = 3 D, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.types import Cache, ExtendFn, Proposal, Verdict
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.state import DecodeState, num_slots
from specdec_t5x.drafters.heads import apply_draft, check_layer, draft_logits
from specdec_t5x.drafters.stepwise import DEFAULT_GAMMA, Stepwise


@flax.struct.dataclass
class EagleState:
  """What the drafter carries.

  Attributes:
    cache: of its layer; entry i is of the output's i-th position.
    features: the target's, of three depths, at the positions that were scored last.
  """

  cache: Cache
  features: Float[Array, "B K F"]


@flax.struct.dataclass
class Going:
  """What a draft goes on from.

  Attributes:
    cache: of the layer, drafted positions included.
    feature: its own at the last of them.
    normed: what the next distribution comes from.
    drafted: how many tokens were.
    target: the target's cache, for its keys of the input.
  """

  cache: Cache
  feature: Float[Array, "B 1 D"]
  normed: Float[Array, "B 1 D"]
  drafted: Int[Array, ""]
  target: Cache


@dataclasses.dataclass(frozen=True)
class EagleDraft(Stepwise):
  """Samples up to gamma tokens one by one, each from its own distribution.

  Attributes:
    network: EAGLE's.
    gamma: most tokens a draft.
  """

  network: Any
  gamma: int = DEFAULT_GAMMA

  taps = 3
  # Of tokens that the target decoded by itself it lacks the features.
  resumes = False

  @property
  def networks(self) -> Mapping[str, Any]:
    """The network that drafts, by its name."""
    return {"draft": self.network}

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such features, keys and values."""
    super().check(target)
    check_layer(target, self.network)

  def start(self, context: Context) -> EagleState:
    """Returns an empty cache and no features: the target was not called yet."""
    cfg, rows = self.network.config, context.source.shape[0]
    # A block of known positions may overrun the output.
    slots = num_slots(context.max_length, 2 * (self.gamma + 1))
    features = jnp.zeros((rows, self.gamma + 1, self.taps * cfg.emb_dim))
    return EagleState(self.network.empty_cache(rows, slots), features)

  def extend(self, context: Context) -> ExtendFn:
    """Returns what drafts: it reads a token beside its own feature."""

    def extend(going, tokens):
      embedded = context.target.embed(tokens)
      given = going.cache, going.feature, embedded, going.target
      found, feature, cache = apply_draft(self.network, context, "extend", *given)
      drafted = going.drafted + 1
      going = Going(cache, feature, found, drafted, going.target)
      return draft_logits(self.network, context, found), None, going

    return extend

  def read(self, context: Context, state: DecodeState):
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
    none = jnp.zeros((), jnp.int32)
    going = Going(cache.at(known), feature, found, none, state.target_cache)
    return draft_logits(self.network, context, found)[:, 0], going

  def confidence(
    self, context: Context, cache: Going, logits: Float[Array, "B V"]
  ) -> Float[Array, "B"]:
    """Returns how sure the draft is of its next token, by its own head if it has one."""
    if not self.network.config.confident:
      return super().confidence(context, cache, logits)
    given = cache.normed[:, 0], cache.drafted
    return jax.nn.sigmoid(apply_draft(self.network, context, "confidence", *given))

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, EagleState]:
    """Drafts; no token counts before the target's first call."""
    has_new = state.lengths - state.starts > state.drafter_state.cache.index
    proposal, own = super().propose(context, state, uniforms)
    return proposal.replace(is_valid=proposal.is_valid & has_new[:, None]), own

  def carried(self, cache: Going, state: DecodeState) -> EagleState:
    """Returns the cache of the positions that the target has been at."""
    known = cache.cache.at(state.lengths - state.starts)
    return state.drafter_state.replace(cache=known)

  def commit(
    self,
    context: Context,
    drafter_state: EagleState,
    verdict: Verdict,
    features: Float[Array, "B N F"],
  ) -> EagleState:
    """Returns the state with the target's features, those of what stands among them."""
    del context, verdict
    return drafter_state.replace(features=features.astype(jnp.float32))
