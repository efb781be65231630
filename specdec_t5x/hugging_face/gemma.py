"""Parameter names and config.json of T5Gemma and T5Gemma 2.

Names in a T5Gemma 2's files may contain "model." and "text_model.", and the files may
hold a vision tower.

Source: transformers, models/t5gemma and models/t5gemma2.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from specdec_t5x.hugging_face import names
from specdec_t5x.network.gemma import GemmaConfig

# Whether the decoder's attention is merged, by model_type.
KINDS = {"t5gemma": False, "t5gemma2": True}
HEAD = "lm_head.out_proj.weight"
# Prefixes of arrays that only images need.
_IMAGES = ("encoder.vision_tower.", "encoder.multi_modal_projector.")
_PARTS = {
  "pre_attention_layer_norm": "pre_self_attn_layernorm",
  "post_attention_layer_norm": "post_self_attn_layernorm",
  "pre_self_attention_layer_norm": "pre_self_attn_layernorm",
  "post_self_attention_layer_norm": "post_self_attn_layernorm",
  "pre_cross_attention_layer_norm": "pre_cross_attn_layernorm",
  "post_cross_attention_layer_norm": "post_cross_attn_layernorm",
  "pre_mlp_layer_norm": "pre_feedforward_layernorm",
  "post_mlp_layer_norm": "post_feedforward_layernorm",
  "attention": "self_attn",
  "self_attention": "self_attn",
  "encoder_decoder_attention": "cross_attn",
  "mlp": "mlp",
  "query": "q_proj",
  "key": "k_proj",
  "value": "v_proj",
  "out": "o_proj",
  "query_norm": "q_norm",
  "key_norm": "k_norm",
  "wi_0": "gate_proj",
  "wi_1": "up_proj",
  "wo": "down_proj",
}
SIZES = {
  "vocab_size": "vocab_size",
  "emb_dim": "hidden_size",
  "num_heads": "num_attention_heads",
  "num_kv_heads": "num_key_value_heads",
  "head_dim": "head_dim",
  "mlp_dim": "intermediate_size",
  "query_scalar": "query_pre_attn_scalar",
  "window": "sliding_window",
}
BUILT_IN = {
  "rms_norm_eps": 1e-6,
  "hidden_activation": "gelu_pytorch_tanh",
  "attention_bias": False,
}


def their_name(path: str, config: GemmaConfig) -> str:
  """Returns transformers' name of a parameter, without the prefix "model.".

  >>> their_name("decoder/layers_3/mlp/wi_0/kernel", None)
  'decoder.layers.3.mlp.gate_proj.weight'
  """
  stack, *inner = path.split("/")
  if path == names.EMBEDDING:
    # A T5Gemma 2's embeddings are tied. The name is the first embedding's.
    return f"{'encoder' if config.merged else 'decoder'}.embed_tokens.weight"
  if stack == "encoder_embedder":
    return "encoder.embed_tokens.weight"
  if path == names.LOGITS:
    return HEAD
  if inner[0] == f"{stack}_norm":
    return f"{stack}.norm.weight"
  layer, *parts, _ = inner
  number = layer.removeprefix("layers_")
  return ".".join([stack, "layers", number, *(_PARTS[x] for x in parts), "weight"])


def text_name(name: str) -> str | None:
  """Returns the name of a file's array as in `their_name`; None if images need it."""
  name = name.removeprefix("model.").replace("encoder.text_model.", "encoder.", 1)
  is_of_images = name.startswith(_IMAGES) or name.endswith(".eoi_embedding")
  return None if is_of_images else name


def from_theirs(found: Mapping[str, Any], where: str) -> GemmaConfig:
  """Returns the network of a config.json, without the kind of output projection.

  Raises:
    ValueError: if the network is not supported.
  """
  merged = KINDS[found["model_type"]]
  sides = {name: found.get(name) for name in ("encoder", "decoder")}
  if merged and isinstance(sides["encoder"], Mapping):
    sides["encoder"] = sides["encoder"].get("text_config")
  for name, side in sides.items():
    if not isinstance(side, Mapping):
      raise ValueError(
        f"{where}: {name} must be an object with sizes, got {side!r:.80}. Copy the "
        "file again."
      )
  layers = {
    f"num_{name}_layers": side.get("num_hidden_layers") for name, side in sides.items()
  }
  encoder_fields = _side(sides["encoder"], f"{where}: encoder", merged)
  decoder_fields = _side(sides["decoder"], f"{where}: decoder", merged)
  try:
    encoder = GemmaConfig(merged=merged, **layers, **encoder_fields)
    config = GemmaConfig(merged=merged, **layers, **decoder_fields)
    encoder = None if encoder == config else encoder
    return dataclasses.replace(config, encoder=encoder)
  except (TypeError, ValueError) as error:
    raise ValueError(f"{where}: {error} Copy the file again.") from error


def _side(found: Mapping[str, Any], where: str, merged: bool) -> dict[str, Any]:
  caps = {} if not merged else {"attn_logit_softcapping": None}
  for name, value in (BUILT_IN | caps).items():
    if found.get(name, value) not in (value, None):
      raise ValueError(
        f"{where}: {name} must be {value} for the network, got {found[name]!r}. The "
        "model can't be read."
      )
  lacking = [theirs for theirs in SIZES.values() if found.get(theirs) is None]
  if lacking:
    raise ValueError(f"{where} lacks {lacking[0]}. Copy the file again.")
  default_period = 6 if merged else 2
  period = found.get("sliding_window_pattern", default_period)
  types = found.get("layer_types") or [
    "sliding" if (i + 1) % period else "full" for i in range(period)
  ]
  types = [str(name).removesuffix("_attention") for name in types]
  # The shortest prefix that gives all types by repetition.
  sizes = range(1, len(types) + 1)
  size = next((n for n in sizes if types[n:] == types[:-n]), 0)
  return {
    **{ours: found[theirs] for ours, theirs in SIZES.items()},
    **_positions(found, where, merged),
    "layer_types": tuple(types[:size]),
    "attention_cap": float(found.get("attn_logit_softcapping") or 0),
    "logits_cap": float(found.get("final_logit_softcapping") or 0),
    "start_token": found.get("bos_token_id", 2),
  }


def _object(found, name, where) -> dict:
  """Returns an object of a config.json; a missing object is empty."""
  value = found.get(name) or {}
  if not isinstance(value, dict):
    raise ValueError(
      f"{where}: {name} must be an object, got {value!r}. Copy the folder again."
    )
  return value


def _positions(found, where, merged) -> dict[str, float]:
  """Returns the rotary positions. Old files have the fields beside the sizes."""
  parameters = _object(found, "rope_parameters", where)
  if merged:
    sliding = {"rope_theta": found.get("rope_local_base_freq", 1e4)}
    sliding |= _object(parameters, "sliding_attention", where)
    full = {"rope_theta": found.get("rope_theta", 1e6)}
    full |= _object(found, "rope_scaling", where)
    full |= _object(parameters, "full_attention", where)
  else:
    sliding = full = {"rope_theta": found.get("rope_theta", 1e4), **parameters}
  for kind, supported in ((sliding, ("default",)), (full, ("default", "linear"))):
    if kind.get("rope_type", "default") not in supported:
      raise ValueError(
        f"{where}: rope_type must be one of {supported}, got {kind['rope_type']!r}. "
        "The model can't be read."
      )
  return {
    "theta": float(sliding["rope_theta"]),
    "full_theta": float(full["rope_theta"]),
    "full_factor": float(full.get("factor", 1.0)),
  }
