"""What heads learn: the target's probs some tokens ahead, from its own features.

Shapes: B batch, L length, D width, V vocabulary, H heads.
"""

import dataclasses
import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Shaped

from specdec_t5x.network.decoder import same_segment
from specdec_t5x.network.functional import Network, embed_fn, logits_fn
from specdec_t5x.network.heads import Heads
from specdec_t5x.network.parallel import ParallelDrafter
from specdec_t5x.training import losses
from specdec_t5x.training.objectives import Batch, Judged, Objective, Params, forward


@dataclasses.dataclass(frozen=True)
class _OfHeads(Objective):
  """What a loss of heads has: the target that they draft for, and a weight."""

  target: Network
  decay: float

  def __post_init__(self):
    if not 0 < self.decay <= 1:
      raise ValueError(
        f"HEAD_DECAY must be above 0 and at most 1, got {self.decay}. It is how much a "
        "head counts beside the one before."
      )

  def reader(self, network: Network) -> Network:
    """Returns the target."""
    return self.target


@dataclasses.dataclass(frozen=True)
class HeadDistillation(_OfHeads):
  """sum_i decay^i KL(p_{t+i} || q_i), over the heads i = 1 .. H of each position t.

  p_{t+i} is the frozen target's distribution i tokens on, under teacher forcing. A head
  has no loss where its token is not of the same example. (Medusa weights heads so,
  Hydra learns distributions instead of tokens.)

  Attributes:
    target: its parameters are `frozen`.
    decay: weight of a head beside the one before.
  """

  decay: float = 0.8

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Judges the heads; `hits` is the first one's, where it has the target's token."""
    del dropout_key
    features = forward(self.target, frozen, batch, method="features")
    teacher = logits_fn(self.target, frozen)(features)
    total, hits = 0.0, []
    distributions = head_logits(network, params, self.target, frozen, features, batch)
    for i, logits in enumerate(distributions, 1):
      distribution, counts = ahead(teacher, i), has_token(batch, i)
      value = jnp.where(counts, losses.forward_kl(distribution, logits), 0.0)
      total += self.decay**i * value
      hits.append(counts & (logits.argmax(-1) == distribution.argmax(-1)))
    return Judged(total, hits[0])


@dataclasses.dataclass(frozen=True)
class JointTraining(_OfHeads):
  """Cross-entropy of the target and of each head, that both learn (Stern et al.).

  The target is another one afterwards: decoding is exact for what it then is. `params`
  are {'target', 'heads'}, and nothing is frozen.

  Attributes:
    target: learns, too.
    decay: as for `HeadDistillation`; the paper has 1.
  """

  decay: float = 1.0

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Judges target and heads; `hits` is the target's own."""
    del frozen
    own, tokens = params["target"], batch["decoder_target_tokens"]
    features = forward(self.target, own, batch, dropout_key, method="features")
    logits = logits_fn(self.target, own)(features)
    total = losses.cross_entropy(logits, tokens)
    distributions = head_logits(
      network, params["heads"], self.target, own, features, batch
    )
    for i, drafted in enumerate(distributions, 1):
      value = losses.cross_entropy(drafted, ahead(tokens, i))
      total += self.decay**i * jnp.where(has_token(batch, i), value, 0.0)
    return Judged(total, logits.argmax(-1) == tokens)


def head_logits(
  network: Heads | ParallelDrafter,
  params: Params,
  target: Network,
  target_params: Params,
  features: Float[Array, "B L D"],
  batch: Batch,
) -> Iterator[Float[Array, "B L V"]]:
  """Yields each head's logits at each position.

  Args:
    network: the heads.
    params: theirs.
    target: whose projection and embedding they share.
    target_params: its own.
    features: the target's.
    batch: the tokens.
  """
  apply = lambda *args, method: network.apply({"params": params}, *args, method=method)
  project = logits_fn(target, target_params)
  count = network.config.count
  if isinstance(network, ParallelDrafter):
    found = _parallel(network, params, target, target_params, features, batch)
    yield from (project(found[..., i, :]) for i in range(count))
    return
  if not network.reads_path:
    found = apply(features, method="features")
    yield from (project(found[..., i, :]) for i in range(count))
    return
  embedded = embed_fn(target, target_params)(batch["decoder_target_tokens"])
  path = jnp.stack([ahead(embedded, i) for i in range(count)], axis=-2)
  for i in range(count):
    yield project(apply(features, path[..., : i + 1, :], method="after"))


def _parallel(network, params, target, target_params, features, batch):
  """Returns the features of every position that a parallel drafter drafts."""
  tokens, inputs = (
    batch.get(f"{x}_tokens") for x in ("decoder_target", "encoder_input")
  )
  segments, source = (batch.get(f"{x}_segment_ids") for x in ("decoder", "encoder"))
  is_token = tokens > 0
  same = is_token[:, :, None] & is_token[:, None] & same_segment(segments, segments)
  cross = cross_mask = None
  if network.config.cross_attention:
    known = {"params": target_params}, inputs, source
    cross = target.apply(*known, method="last_cross")
    cross_mask = is_token[:, :, None] & (inputs > 0)[:, None]
    cross_mask = cross_mask & same_segment(segments, source)
  embedded = embed_fn(target, target_params)(tokens)
  given = features, embedded, same, cross, cross_mask
  return network.apply({"params": params}, *given, method="everywhere")


def begun(network: Heads | ParallelDrafter, params: Params, target: Params) -> Params:
  """Returns what heads begin to learn from.

  A parallel drafter begins as the target's last layer; others as they are.

  Args:
    network: the heads.
    params: as their initialisers give them.
    target: the target's parameters.
  """
  if not isinstance(network, ParallelDrafter):
    return params
  decoder = target["decoder"]
  last = max(
    (name for name in decoder if name.startswith("layers_")),
    key=lambda name: int(name.removeprefix("layers_")),
  )
  known = {
    "layer": decoder[last],
    "out_norm": decoder["decoder_norm"],
    "relpos_bias": decoder["relpos_bias"],
  }
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
