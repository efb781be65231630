"""What heads learn: the target's probs some tokens ahead, from its own features.

Shapes: B batch, L length, D width, V vocabulary, H heads.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from specdec_t5x.core.checks import is_finite
from specdec_t5x.network import heads as heads_lib
from specdec_t5x.network.decoder import same_segment
from specdec_t5x.network.functional import (
  Network,
  embed_fn,
  lacks_encoder,
  logits_fn,
)
from specdec_t5x.network.heads import FeatureDrafter
from specdec_t5x.network.inputs import input_mask
from specdec_t5x.network.parallel import LayerDrafter
from specdec_t5x.training import losses
from specdec_t5x.training.objectives import Batch, Judged, Objective, Params, forward

D_PACE = "d_pace"


@dataclasses.dataclass(frozen=True)
class HeadObjective(Objective):
  """A loss of heads that draft for a target.

  A head has no loss where its token is not of the same example.

  Attributes:
    target: whose features the heads read.
    decay: weight of a head beside the one before; 'd_pace' is `losses.d_pace`.
  """

  target: Network
  decay: float | str

  def __post_init__(self):
    is_share = is_finite(self.decay) and 0 < self.decay <= 1
    if self.decay != D_PACE and not is_share:
      raise ValueError(
        f"HEAD_DECAY must be above 0 and at most 1, got {self.decay!r}. It is how much "
        f"a head counts beside the one before; {D_PACE!r} goes by what drafts gain."
      )

  def read(self, network: FeatureDrafter, params: Params, batch: Batch, key=None):
    """Returns the target's features, and its logits under teacher forcing."""
    features = forward(
      self.target, params, batch, key, method="features", taps=network.taps
    )
    width = self.target.config.emb_dim
    return features, logits_fn(self.target, params)(features[..., -width:])

  def summed(
    self,
    values: Sequence[Float[Array, "B L"]],
    of_tokens: Sequence[Float[Array, "B L"]],
    batch: Batch,
  ) -> Float[Array, "B L"]:
    """Returns the weighted sum of the heads' losses, given their cross-entropies."""
    heads = range(1, len(values) + 1)
    counts = jnp.stack([has_token(batch, i) for i in heads])
    if self.decay == D_PACE:
      weights = losses.d_pace(jnp.exp(-jnp.stack(of_tokens)), counts)
    else:
      weights = jnp.stack([self.decay**i for i in heads])[:, None, None]
    return jnp.where(counts, weights * jnp.stack(values), 0.0).sum(axis=0)

  def reader(self, network: Network) -> Network:
    """Returns the target."""
    return self.target


@dataclasses.dataclass(frozen=True)
class HeadDistillation(HeadObjective):
  """sum_i decay^i D(p_{t+i}, q_i), over the heads i = 1 .. H of each position t.

  D is a distance, usually KL(p || q). p_{t+i} is the frozen target's distribution i
  tokens on, under teacher forcing. (Medusa weights heads so, Hydra learns distributions
  instead of tokens.) The target's parameters are `frozen`.

  Attributes:
    loss: a name in `losses.DISTILLATION_LOSSES`.
  """

  decay: float | str = 0.8
  loss: str = "forward_kl"

  def __post_init__(self):
    super().__post_init__()
    losses.get_distillation_loss(self.loss)

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Judges the heads; `hits` is the first one's, where it has the target's token."""
    del dropout_key
    features, teacher = self.read(network, frozen, batch)
    distance = losses.get_distillation_loss(self.loss)
    values, of_tokens, hits = [], [], []
    drafted = drafted_ahead(network, params, self.target, frozen, features, batch)
    for i, logits in enumerate(drafted, 1):
      distribution, tokens = ahead(teacher, i), ahead(batch["decoder_target_tokens"], i)
      values.append(distance(distribution, logits))
      of_tokens.append(losses.cross_entropy(logits, tokens))
      hits.append(logits.argmax(-1) == distribution.argmax(-1))
    total = self.summed(values, of_tokens, batch)
    return Judged(total, has_token(batch, 1) & hits[0])


@dataclasses.dataclass(frozen=True)
class JointTraining(HeadObjective):
  """Cross-entropy of the target and of each head, that both learn (Stern et al.).

  The target is another one afterwards: decoding is exact for what it then is. `params`
  are {'target', 'heads'}, and nothing is frozen.
  """

  decay: float | str = 1.0

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Judges target and heads; `hits` is the target's own."""
    del frozen
    own, tokens = params["target"], batch["decoder_target_tokens"]
    features, logits = self.read(network, own, batch, dropout_key)
    drafts = drafted_ahead(network, params["heads"], self.target, own, features, batch)
    of_tokens = [
      losses.cross_entropy(drafted, ahead(tokens, i))
      for i, drafted in enumerate(drafts, 1)
    ]
    total = losses.cross_entropy(logits, tokens)
    total += self.summed(of_tokens, of_tokens, batch)
    return Judged(total, logits.argmax(-1) == tokens)


def drafted_ahead(
  network: FeatureDrafter,
  params: Params,
  target: Network,
  target_params: Params,
  features: Float[Array, "B L D"],
  batch: Batch,
) -> Iterator[Float[Array, "B L V"]]:
  """Yields the logits of each head of `network` at each position.

  `target` has the projection and the embedding that heads share, and `features` of as
  many depths as `network` taps.
  """
  apply = lambda *args, method: network.apply({"params": params}, *args, method=method)
  project, tokens = logits_fn(target, target_params), batch["decoder_target_tokens"]
  embedded = embed_fn(target, target_params)(tokens)
  heads = range(network.config.count)
  if network.reads_path:
    path = jnp.stack([ahead(embedded, i) for i in heads], axis=-2)
    for i in heads:
      yield project(apply(features, path[..., : i + 1, :], method="after"))
    return
  if isinstance(network, LayerDrafter):
    cross = _cross_attention(network, target, target_params, batch)
    segments = batch.get("decoder_segment_ids")
    is_token = input_mask(tokens)
    same = is_token[:, :, None] & is_token[:, None] & same_segment(segments, segments)
    found = apply(features, embedded, same, *cross, method="everywhere")
  else:
    found = apply(features, method="features")
  # Head i drafts the token after the one that stands i positions on.
  bias = apply(tokens, method="bias") if network.config.rank else None
  for i in heads:
    logits = project(found[..., i, :])
    yield logits if bias is None else logits + ahead(bias, i)


def _cross_attention(network, target, target_params, batch):
  """Returns the target's keys and values of the inputs, and who sees them."""
  if not network.config.cross_attention:
    return None, None
  inputs, source = batch.get("encoder_input_tokens"), batch.get("encoder_segment_ids")
  cross = target.apply({"params": target_params}, inputs, source, method="last_cross")
  is_token = input_mask(batch["decoder_target_tokens"])
  mask = is_token[:, :, None] & input_mask(inputs)[:, None]
  return cross, mask & same_segment(batch.get("decoder_segment_ids"), source)


def begun(network: Network, params: Params, target: Params) -> Params:
  """Returns what a draft that is made for a target begins to learn from.

  A parallel drafter and EAGLE's begin as the target's last layer; a draft on the
  target's encoder as some of its layers, evenly, the last one among them; the rows of a
  bias as the target's embedding of their tokens, so that tokens that are alike learn
  alike.

  Args:
    network: the draft.
    params: as its initialisers give them.
    target: the target's parameters.
  """
  decoder, known = target["decoder"], {}
  last = sum(name.startswith("layers_") for name in decoder) - 1
  if isinstance(network, LayerDrafter):
    known = {
      "layer": decoder[f"layers_{last}"],
      "out_norm": decoder["decoder_norm"],
      # Of a uMT5, the layer's own.
      "relpos_bias": {**decoder, **decoder[f"layers_{last}"]}["relpos_bias"],
    }
  elif lacks_encoder(network):
    evenly = np.linspace(last, 0, network.config.num_decoder_layers)[::-1]
    taken = enumerate(evenly.round().astype(int))
    layers = {f"layers_{i}": decoder[f"layers_{layer}"] for i, layer in taken}
    known = {**target, "decoder": {**decoder, **layers}}
  if heads_lib.TOKENS in params:
    rows = {**decoder, **target}["token_embedder"]["embedding"]
    rows = rows / jnp.linalg.norm(rows, axis=-1, keepdims=True)
    shape = rows.shape[1], params[heads_lib.TOKENS].shape[1]
    known[heads_lib.TOKENS] = rows @ jax.random.normal(jax.random.key(0), shape)
  # Of the layer's own parameters alone: its keys of the input are the target's.
  take = lambda path, own: functools.reduce(
    lambda tree, key: tree[key.key], path, {**params, **known}
  )
  return jax.tree_util.tree_map_with_path(take, params)


def ahead(rows: Shaped[Array, "B L *V"], count: int) -> Shaped[Array, "B L *V"]:
  """Returns what stands `count` positions on; beyond the end zeros."""
  padding = [(0, 0), (0, count)] + [(0, 0)] * (rows.ndim - 2)
  return jnp.pad(rows, padding)[:, count : count + rows.shape[1]]


def has_token(batch: Batch, count: int) -> Bool[Array, "B L"]:
  """Returns where `count` positions on there is a token of the same example."""
  tokens = batch["decoder_target_tokens"]
  segments = batch.get("decoder_segment_ids")
  segments = jnp.ones_like(tokens) if segments is None else segments
  return (ahead(tokens, count) > 0) & (ahead(segments, count) == segments)
