"""Heads: small networks that draft from the target's own features.

h is the target's feature of the last token that it has read: what its distribution of
the next token comes from. That next token x_1 is known when heads draft; head i drafts
x_{i+1}. A head gives a feature in h's place, and the target's own projection makes
logits of it, so a head has no vocabulary of its own, and a target with heads no second
encoder.

Sources: Stern et al., arXiv 1811.03115 (blockwise); Cai et al., arXiv 2401.10774
(Medusa); Ankner et al., arXiv 2402.05109 (Hydra).

Shapes: D width of the features, H heads.
"""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from specdec_t5x.core.checks import is_whole
from specdec_t5x.network import markov
from specdec_t5x.network.config import DTYPES
from specdec_t5x.network.layers import Dense, project
from specdec_t5x.network.markov import WHOLE, PositionDrafter


@dataclasses.dataclass(frozen=True)
class HeadsConfig:
  """The shape of heads.

  Attributes:
    kind: one of `KINDS`.
    count: heads (H), which is the depth of their drafts.
    emb_dim: the target's (D).
    layers: residual blocks of a head, of 'medusa' and 'hydra'.
    hidden_dim: hidden width a head, of 'blockwise'.
    dtype: of the activations.
    products: as `config.NetworkConfig.products`.
    rank: of the bias of the token before (`markov`); 0 is none.
    vocab_size: the target's, with a bias or hot tokens.
    hot: tokens that it may draft, trimmed (`hot`); 0 is all.
  """

  kind: str
  count: int
  emb_dim: int
  layers: int = 1
  hidden_dim: int = 128
  dtype: str = "float32"
  products: str = "auto"
  rank: int = 0
  vocab_size: int = 0
  hot: int = 0

  def __post_init__(self):
    if self.kind not in KINDS:
      raise ValueError(
        f"The kind of heads must be one of {sorted(KINDS)}, got {self.kind!r}. Set "
        "HEADS to one of them."
      )
    if self.dtype not in DTYPES:
      raise ValueError(
        f"HeadsConfig.dtype must be one of {DTYPES}, got {self.dtype!r}."
      )
    for name in ("count", "emb_dim", "layers", "hidden_dim"):
      if not is_whole(value := getattr(self, name), 1):
        raise ValueError(
          f"HeadsConfig.{name} must be a whole number of at least 1, got {value!r}."
        )
    markov.check(self)
    if self.rank and KINDS[self.kind].reads_path:
      raise ValueError(
        f"A bias of the token before is not for {self.kind!r} heads, which read the "
        f"tokens before theirs anyway, got rank {self.rank}. Leave out '_markov'."
      )


class Heads(PositionDrafter):
  """What all kinds of heads have in common.

  Attributes:
    config: their shape.
  """

  config: HeadsConfig

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
    self.of_tokens(tokens[0])
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
        WHOLE,
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
    self.wi = Dense(cfg.count * cfg.hidden_dim, WHOLE, **kind)
    # No `zeros`: behind a relu of zeros nothing would ever learn.
    small = nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")
    self.wo = Dense(cfg.count * cfg.emb_dim, WHOLE, small, **kind)

  def features(self, h):
    """Returns every head's feature; see `Heads`."""
    (hidden,) = project(h, self.wi)
    change = self.wo(nn.relu(hidden)).reshape(*h.shape[:-1], -1, h.shape[-1])
    return h[..., None, :] + change


KINDS: dict[str, type[Heads]] = {
  "blockwise": Blockwise,
  "medusa": Medusa,
  "hydra": Hydra,
}


def are_heads(shapes: Mapping[str, tuple[int, ...]]) -> bool:
  """Returns whether parameters of these shapes, by path, are heads'."""
  return any(name.startswith(("medusa_0/", "hydra_0/")) for name in shapes) or (
    set(markov.without(shapes)) == {"wi/kernel", "wo/kernel"}
  )


def config_from_shapes(
  shapes: Mapping[str, tuple[int, ...]], dtype: str = "float32"
) -> HeadsConfig:
  """Returns the configuration of heads with these parameters, by path."""
  known = {"dtype": dtype, **markov.knobs(shapes)}
  shapes = markov.without(shapes)
  kind = next(iter(shapes)).split("_")[0]
  if kind not in KINDS:
    (emb_dim, hidden), (_, out) = shapes["wi/kernel"], shapes["wo/kernel"]
    count = out // emb_dim
    hidden_dim = hidden // count
    return HeadsConfig("blockwise", count, emb_dim, hidden_dim=hidden_dim, **known)
  blocks = {tuple(name.split("/")[:2]) for name in shapes}
  count = len({head for head, _ in blocks})
  emb_dim = shapes[f"{kind}_0/layers_0/kernel"][1]
  return HeadsConfig(kind, count, emb_dim, len(blocks) // count, **known)
