"""Drafting by heads of feed-forward layers (blockwise, Medusa).

h is the target's feature at the last token that the target has read. The next token x_1
is known when heads draft; head i gives the distribution of x_{i+1}. A call of the
target verifies a draft and computes the feature for the next draft, so m tokens take at
least m / (H + 1) + 1 calls (Stern et al., section 4).

Sources: Stern et al., arXiv 1811.03115 (blockwise); Cai et al., arXiv 2401.10774
(Medusa).

Shapes: B rows, G drafted nodes, N = G + 1, D width of the features, H heads, L uniforms
per decision.
"""

import dataclasses

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.heads import Headed, apply_draft
from specdec_t5x.network.heads import REPLICATED, FeatureDrafter, HeadsConfig
from specdec_t5x.network.layers import Dense, project


class Heads(FeatureDrafter):
  """The base of heads of feed-forward layers."""

  def features(self, h: Float[Array, "*B D"]) -> Float[Array, "*B H D"]:
    """Returns the feature of every head."""
    raise NotImplementedError

  def __call__(self, *args, **kwargs):
    """Creates the parameters; T5X's inputs do not affect the parameters."""
    del args, kwargs
    self.create_hot_parameters()
    return self.features(jnp.zeros((1, self.config.emb_dim)))


class _Residual(nn.Module):
  """h + silu(W h) for each layer; W is initialized to 0.

  A head therefore starts as the target's distribution of the next token. The blocks in
  the paper have biases; T5 has no biases.
  """

  config: HeadsConfig

  @nn.compact
  def __call__(self, h):
    cfg = self.config
    for i in range(cfg.layers):
      dense = Dense(
        cfg.emb_dim,
        REPLICATED,
        nn.initializers.zeros,
        cfg.dtype,
        cfg.products,
        name=f"layers_{i}",
      )
      h = h + nn.silu(dense(h))
    return h


class Medusa(Heads):
  """Heads that are residual blocks of h: f_i = h + silu(W_i h)."""

  def setup(self):
    # Separate modules, as a single module listed n times would share its weights.
    self.medusa = [_Residual(self.config) for _ in range(self.config.count)]

  def features(self, h):
    """Returns the feature of every head; see `Heads`."""
    return jnp.stack([head(h) for head in self.medusa], axis=-2)


class Blockwise(Heads):
  """A single feed-forward layer for all heads: f_i = h + (W_o relu(W_i h))_i.

  Stern et al. also send the next token's feature through the layer. Here the next
  token's feature is h unchanged, so that the output stays the target's.
  """

  def setup(self):
    cfg = self.config
    self.wi = Dense(
      cfg.count * cfg.hidden_dim, REPLICATED, dtype=cfg.dtype, products=cfg.products
    )
    # The initial weights are small, not 0. With zeros before and after the relu no
    # weight would ever learn.
    small = nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")
    self.wo = Dense(
      cfg.count * cfg.emb_dim,
      REPLICATED,
      small,
      dtype=cfg.dtype,
      products=cfg.products,
    )

  def features(self, h):
    """Returns the feature of every head; see `Heads`."""
    (hidden,) = project(h, self.wi)
    change = self.wo(nn.relu(hidden)).reshape(*h.shape[:-1], -1, h.shape[-1])
    return h[..., None, :] + change


@flax.struct.dataclass
class HeadState:
  """The drafter's state.

  Attributes:
    feature: the target's feature at the last accepted token that the target has read.
    is_known: whether there is a feature; False before the target's first call.
    source: the rows' inputs, which `Pruned` trees read.
  """

  feature: Float[Array, "B D"]
  is_known: Bool[Array, "B"]
  source: Int[Array, "B E"]


@dataclasses.dataclass(frozen=True)
class HeadDraft(Headed):
  """Drafts from one feature. Head i gives the distribution at depth i."""

  def start(self, context: Context) -> HeadState:
    """Returns a state without a feature, as the target was not called yet."""
    rows = context.source.shape[0]
    feature = jnp.zeros((rows, self.network.config.emb_dim))
    return HeadState(feature, jnp.zeros(rows, bool), context.source)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, HeadState]:
    """Drafts all nodes, with no valid node before the target's first call."""
    drafter_state = state.drafter_state
    features = apply_draft(self.network, context, "features", drafter_state.feature)
    proposal = self.proposal(context, state, uniforms, features)
    is_valid = proposal.is_valid & drafter_state.is_known[:, None]
    return proposal.replace(is_valid=is_valid), drafter_state

  def commit(
    self,
    context: Context,
    drafter_state: HeadState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> HeadState:
    """Returns the state with the feature of the last accepted node."""
    del context
    feature = jnp.take_along_axis(features, verdict.last[:, None, None], axis=1)[:, 0]
    return drafter_state.replace(
      feature=feature.astype(jnp.float32), is_known=jnp.ones(len(feature), bool)
    )
