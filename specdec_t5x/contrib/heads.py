"""Heads of feed-forward layers (blockwise, Medusa, Hydra), and how they draft.

h is the target's feature of the last token that it has read. The token x_1 after it is
known when heads draft; head i gives the distribution of x_{i+1}. A call of the target
verifies a draft and gives the feature that the next draft is made from, so m tokens
take at least m / (H + 1) + 1 calls (Stern et al., section 4).

Sources: Stern et al., arXiv 1811.03115 (blockwise); Cai et al., arXiv 2401.10774
(Medusa); Ankner et al., arXiv 2402.05109 (Hydra).

Shapes: B rows, G drafted nodes, N = G + 1, D width of the features, H heads, L uniforms
a decision.
"""

import dataclasses

import flax.linen as nn
import flax.struct
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.core.types import Proposal, Verdict
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.heads import Headed
from specdec_t5x.network.heads import REPLICATED, FeatureDrafter, HeadsConfig
from specdec_t5x.network.layers import Dense, project


class Heads(FeatureDrafter):
  """The base of the kinds of heads that are feed-forward layers."""

  def features(self, h: Float[Array, "*B D"]) -> Float[Array, "*B H D"]:
    """Returns every head's feature, of heads that read no path."""
    raise NotImplementedError

  def after(
    self, h: Float[Array, "*B D"], path: Float[Array, "*B I D"]
  ) -> Float[Array, "*B D"]:
    """Returns the feature of head I.

    Args:
      h: the target's.
      path: embeddings of x_1 .. x_I, known and drafted.
    """
    return self.features(h)[..., path.shape[-2] - 1, :]

  def __call__(self, *tokens, enable_dropout=False, **kwargs):
    """Reads nothing of T5X's arguments: parameters follow from the configuration."""
    del enable_dropout, kwargs
    self.create_token_parameters(tokens[0])
    h = jnp.zeros((1, self.config.emb_dim))
    path = lambda head: jnp.zeros((1, head + 1, self.config.emb_dim))
    heads = range(self.config.count) if self.reads_path else [0]
    return [self.after(h, path(head)) for head in heads]


class _Residual(nn.Module):
  """h + silu(W x), then y + silu(W y) for each further layer; W is 0 at first.

  So a head begins as the target's own distribution of the next token. Medusa's and
  Hydra's own blocks have biases; T5 has none.
  """

  config: HeadsConfig

  @nn.compact
  def __call__(self, h, x):
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
      h = x = h + nn.silu(dense(x))
    return h


class Medusa(Heads):
  """Each head a residual block of h alone: f_i = h + silu(W_i h)."""

  def setup(self):
    # One module each: a list of one module n times would share its weights.
    self.medusa = [_Residual(self.config) for _ in range(self.config.count)]

  def features(self, h):
    """Returns every head's feature; see `Heads`."""
    return jnp.stack([head(h, h) for head in self.medusa], axis=-2)


class Hydra(Heads):
  """Head i also reads the tokens before its own: f_i = h + silu(W_i [h, x_1 .. x_i]).

  So its distribution is conditional on the path. Hydra's own blocks have a learned map
  in h's place; with the target's projection h itself is where to begin.
  """

  reads_path = True

  def setup(self):
    self.hydra = [_Residual(self.config) for _ in range(self.config.count)]

  def after(self, h, path):
    """Returns the feature of one head; see `Heads`."""
    flat = path.reshape(*path.shape[:-2], -1)
    return self.hydra[path.shape[-2] - 1](h, jnp.concatenate([h, flat], axis=-1))


class Blockwise(Heads):
  """One feed-forward layer for all heads: f_i = h + (W_o relu(W_i h))_i.

  Stern et al. send the next token's own feature through the layer, too; here that is h
  as it is, so that the output stays the target's.
  """

  def setup(self):
    cfg = self.config
    kind = {"dtype": cfg.dtype, "products": cfg.products}
    self.wi = Dense(cfg.count * cfg.hidden_dim, REPLICATED, **kind)
    # No `zeros`: behind a relu of zeros nothing would ever learn.
    small = nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")
    self.wo = Dense(cfg.count * cfg.emb_dim, REPLICATED, small, **kind)

  def features(self, h):
    """Returns every head's feature; see `Heads`."""
    (hidden,) = project(h, self.wi)
    change = self.wo(nn.relu(hidden)).reshape(*h.shape[:-1], -1, h.shape[-1])
    return h[..., None, :] + change


@flax.struct.dataclass
class HeadState:
  """What the drafter carries.

  Attributes:
    feature: the target's, of the last token that it read and that stands.
    is_known: whether there is one: not before the target's first call.
    source: the row's input, which `Pruned` trees look at.
  """

  feature: Float[Array, "B D"]
  is_known: Bool[Array, "B"]
  source: Int[Array, "B E"]


@dataclasses.dataclass(frozen=True)
class HeadDraft(Headed):
  """Drafts from one feature, by heads: the probs at depth i is that of head i."""

  def start(self, context: Context) -> HeadState:
    """Returns a state without a feature: the target was not called yet."""
    rows, width = context.source.shape[0], self.network.config.emb_dim
    return HeadState(jnp.zeros((rows, width)), jnp.zeros(rows, bool), context.source)

  def propose(
    self, context: Context, state: DecodeState, uniforms: Float[Array, "B G L"]
  ) -> tuple[Proposal, HeadState]:
    """Drafts all nodes, none that counts before the target's first call."""
    own = state.drafter_state
    if self.network.reads_path:
      read = self._path_reader(context, own.feature, state.last_tokens())
      proposal = self.grown(context, state, uniforms, read)
    else:
      features = self.apply(context, "features", own.feature)
      proposal = self.proposal(context, state, uniforms, features)
    is_valid = proposal.is_valid & own.is_known[:, None]
    return proposal.replace(is_valid=is_valid), own

  def commit(
    self,
    context: Context,
    drafter_state: HeadState,
    verdict: Verdict,
    features: Float[Array, "B N D"],
  ) -> HeadState:
    """Returns the feature of the last accepted node."""
    del context
    feature = jnp.take_along_axis(features, verdict.last[:, None, None], axis=1)[:, 0]
    return drafter_state.replace(
      feature=feature.astype(jnp.float32), is_known=jnp.ones(len(feature), bool)
    )

  def _path_reader(self, context, feature, last):
    """Returns how to read heads whose distributions depend on the tokens before."""
    paths = last[:, None, None]  # [B, P, I], tokens after the feature's.

    def read(depth, tokens, parents):
      nonlocal paths
      if tokens is not None:
        above = jnp.take_along_axis(paths, parents[..., None], axis=1)
        paths = jnp.concatenate([above, tokens[..., None]], axis=2)
      shape = (*paths.shape[:2], feature.shape[-1])
      h = jnp.broadcast_to(feature[:, None], shape)
      path = context.target.embed(paths).astype(h.dtype)
      drafted = self.apply(context, "after", h, path)
      return self.logits(context, drafted)

    return read
