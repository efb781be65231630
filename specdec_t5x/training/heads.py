"""Drafts that read a target's features: the networks, initial parameters and losses.

Shapes: B batch, L length, D width, V vocabulary, H heads.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.knobs import is_finite, is_whole
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.decoder import same_segment
from specdec_t5x.network.functional import (
  Network,
  embed_fn,
  lacks_encoder,
  logits_fn,
  network_for,
)
from specdec_t5x.network.heads import LAYERS, FeatureDrafter, HeadsConfig
from specdec_t5x.network.inputs import input_mask
from specdec_t5x.network.parallel import LayerDrafter
from specdec_t5x.training import losses
from specdec_t5x.training.objectives import Batch, Judged, Objective, Params, forward


def new_heads(
  target_path: str, kind: str, count: int, layers: int, **knobs: Any
) -> Network:
  """Returns a network that drafts from a target's features, with the target's sizes.

  Args:
    target_path: path of the target's checkpoint.
    kind: one of `network.heads.KINDS`, or 'shared_encoder'.
    count: number of heads, or of drafted positions.
    layers: number of a head's layers; for a draft on the target's encoder, number of
      decoder layers.
    **knobs: further fields of `network.heads.HeadsConfig`, for heads only.

  Raises:
    ValueError: if there is no target at `target_path`, or a knob is out of range.
  """
  target = Checkpoint.open(target_path).settings()
  if kind != "shared_encoder":
    settings = {} if kind in LAYERS else {"layers": layers, **knobs}
    return network_for(HeadsConfig.of(target, count, kind, **settings))
  if getattr(target, "is_gemma", False):
    raise ValueError(
      "A draft on the target's encoder needs a T5 as target, got a T5Gemma: shapes do "
      "not determine a T5Gemma's settings. Train 'medusa' heads, or distil a draft "
      "model."
    )
  most = target.num_decoder_layers if isinstance(target, T5Config) else 0
  if not is_whole(layers, 1) or layers > most:
    raise ValueError(
      f"HEAD_LAYERS must be a whole number from 1 to {most} with 'shared_encoder', the "
      f"target's decoder layers (0 if the target has no encoder), got {layers!r}."
    )
  config = dataclasses.replace(
    target, dropout_rate=0.0, num_encoder_layers=0, num_decoder_layers=layers
  )
  return network_for(config)


@dataclasses.dataclass(frozen=True)
class HeadDistillation(Objective):
  """sum_i decay^i D(p_{t+i}, q_i), over the heads i = 1 .. H of each position t.

  D is a distance, usually KL(p || q). p_{t+i} is the frozen target's distribution i
  tokens ahead, under teacher forcing. Medusa uses these weights of heads. The argument
  `frozen` holds the target's parameters. A head's loss at a position is 0 unless the
  head's token is of the same example.
  """

  target: Network  # The network whose features the heads read.
  decay: float = 0.8  # Weight of a head relative to the head before.
  distance: losses.DistillationLoss = losses.forward_kl

  def __post_init__(self):
    if not (is_finite(self.decay) and 0 < self.decay <= 1):
      raise ValueError(
        f"HEAD_DECAY must be above 0 and at most 1, got {self.decay!r}. HEAD_DECAY is "
        "the weight of a head relative to the previous head."
      )

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Returns the heads' losses; `hits` compares argmaxes of the first head and target.

    `hits` is False unless the first head's token is of the same example.
    """
    del dropout_key
    features = forward(self.target, frozen, batch, method="features", taps=network.taps)
    last = features[..., -self.target.config.emb_dim :]
    teacher = logits_fn(self.target, frozen)(last)
    values = []
    hits = []
    drafted = drafted_ahead(network, params, self.target, frozen, features, batch)
    for i, logits in enumerate(drafted, 1):
      target_logits = ahead(teacher, i)
      counts = has_token(batch, i)
      value = self.decay**i * self.distance(target_logits, logits)
      values.append(jnp.where(counts, value, 0.0))
      hits.append(counts & (logits.argmax(-1) == target_logits.argmax(-1)))
    return Judged(sum(values), hits[0])


def drafted_ahead(
  network: FeatureDrafter,
  params: Params,
  target: Network,
  target_params: Params,
  features: Float[Array, "B L D"],
  batch: Batch,
) -> Iterator[Float[Array, "B L V"]]:
  """Yields the logits of each head of `network` at each position.

  The heads share the projection and the embedding of `target`. `features` come from as
  many depths as `network` taps.
  """

  def apply(*args, method):
    return network.apply({"params": params}, *args, method=method)

  if isinstance(network, LayerDrafter):
    tokens = batch["decoder_target_tokens"]
    embedded = embed_fn(target, target_params)(tokens)
    segments = batch.get("decoder_segment_ids")
    is_token = input_mask(tokens)
    cross = cross_mask = None
    if network.config.cross_attention:  # The target's keys and values of the inputs.
      inputs = batch["encoder_input_tokens"]
      input_segments = batch.get("encoder_segment_ids")
      cross = target.apply(
        {"params": target_params}, inputs, input_segments, method="last_cross"
      )
      cross_mask = is_token[:, :, None] & input_mask(inputs)[:, None]
      cross_mask &= same_segment(segments, input_segments)
    same = is_token[:, :, None] & is_token[:, None] & same_segment(segments, segments)
    drafted = apply(features, embedded, same, cross, cross_mask, method="everywhere")
  else:
    drafted = apply(features, method="features")
  project = logits_fn(target, target_params)
  for i in range(network.config.count):
    yield project(drafted[..., i, :])


def begun(network: Network, params: Params, target: Params) -> Params:
  """Returns the initial parameters of a draft that is made for a target.

  A parallel drafter and EAGLE's drafter begin as the target's last layer. A draft on
  the target's encoder begins as evenly spaced layers of the target's decoder, with the
  last layer among them.

  Args:
    network: the draft.
    params: the draft's parameters from the initialisers.
    target: the target's parameters.
  """
  decoder = target["decoder"]
  target_parts = {}
  last = sum(name.startswith("layers_") for name in decoder) - 1
  if isinstance(network, LayerDrafter):
    target_parts = {
      "layer": decoder[f"layers_{last}"],
      "out_norm": decoder["decoder_norm"],
      # In a uMT5, each layer has a bias.
      "relpos_bias": {**decoder, **decoder[f"layers_{last}"]}["relpos_bias"],
    }
  elif lacks_encoder(network):
    depths = np.linspace(last, 0, network.config.num_decoder_layers)[::-1]
    layers = {
      f"layers_{i}": decoder[f"layers_{depth}"]
      for i, depth in enumerate(depths.round().astype(int))
    }
    target_parts = {**target, "decoder": {**decoder, **layers}}
  source = {**params, **target_parts}

  def initial_value(path, _):
    return functools.reduce(lambda tree, key: tree[key.key], path, source)

  # The draft has only some parameters of the target's layer: the keys of the input, for
  # example, are the target's.
  return jax.tree_util.tree_map_with_path(initial_value, params)


def ahead(rows: Shaped[Array, "B L *V"], count: int) -> Shaped[Array, "B L *V"]:
  """Shifts rows by `count` positions to the front, with zeros beyond the end."""
  padding = [(0, 0), (0, count)] + [(0, 0)] * (rows.ndim - 2)
  return jnp.pad(rows, padding)[:, count : count + rows.shape[1]]


def has_token(batch: Batch, count: int) -> Bool[Array, "B L"]:
  """Returns True where the token `count` positions ahead is of the same example."""
  tokens = batch["decoder_target_tokens"]
  segments = batch.get("decoder_segment_ids")
  segments = jnp.ones_like(tokens) if segments is None else segments
  return (ahead(tokens, count) > 0) & (ahead(segments, count) == segments)
