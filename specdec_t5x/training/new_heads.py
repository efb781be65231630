"""The networks at the start of the training of heads, by the names of the kinds."""

import dataclasses
from typing import Any

from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import Network, Settings, network_for
from specdec_t5x.network.heads import LAYERS, HeadsConfig


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
  if kind == "shared_encoder":
    return network_for(_on_encoder(target, layers))
  settings = {} if kind in LAYERS else {"layers": layers, **knobs}
  return network_for(HeadsConfig.of(target, count, kind, **settings))


def _on_encoder(target: Settings, layers: int) -> T5Config:
  """Returns the configuration of a draft on a target's encoder."""
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
  return dataclasses.replace(
    target, dropout_rate=0.0, num_encoder_layers=0, num_decoder_layers=layers
  )
