"""Converts a T5's config.json to our configuration."""

from collections.abc import Mapping
from typing import Any

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.hugging_face import gemma
from specdec_t5x.network.config import T5Config
from specdec_t5x.network.layers import MAX_DISTANCE, NUM_BUCKETS

# UL2, ByT5, Flan-T5 and MADLAD-400 have the type t5.
_KINDS = ("t5", "mt5", "umt5")
# Suffixes of the classes of networks that generate tokens, in new and old versions.
_GENERATE = ("ForConditionalGeneration", "WithLMHeadModel")
# Activations by Hugging Face's name of a layer. "gated-gelu" is the tanh approximation.
# "gelu" alone is the exact function, which our networks do not have.
ACTIVATIONS = {
  "relu": ("relu",),
  "gelu_new": ("gelu",),
  "silu": ("silu",),
  "gated-relu": ("relu", "linear"),
  "gated-gelu": ("gelu", "linear"),
  "gated-gelu_new": ("gelu", "linear"),
  "gated-gelu_pytorch_tanh": ("gelu", "linear"),
  "gated-silu": ("silu", "linear"),
}
SIZES = {
  "vocab_size": "vocab_size",
  "emb_dim": "d_model",
  "num_heads": "num_heads",
  "head_dim": "d_kv",
  "mlp_dim": "d_ff",
  "num_encoder_layers": "num_layers",
  "num_decoder_layers": "num_decoder_layers",
}
# Fixed settings of our network, which are also the defaults of config.json.
BUILT_IN = {
  "relative_attention_num_buckets": NUM_BUCKETS,
  "relative_attention_max_distance": MAX_DISTANCE,
  "layer_norm_epsilon": 1e-6,
  "is_encoder_decoder": True,
}


def from_theirs(values: Mapping[str, Any], where: str) -> T5Config:
  """Returns the network of a config.json, without the kind of output projection.

  Args:
    values: contents of config.json.
    where: path of config.json, for messages.

  Raises:
    ValueError: if the network is not a T5, or is not supported.
  """
  kind = values.get("model_type")
  names = values.get("architectures") or []
  names = [str(name) for name in names] if isinstance(names, list) else []
  if names and not any(name.endswith(_GENERATE) for name in names):
    raise ValueError(
      f"{where}: expected an encoder-decoder that generates tokens "
      f"(..ForConditionalGeneration), got a {', '.join(names)}. An encoder alone, a "
      "classifier or a forecaster (Chronos Bolt) can't be read."
    )
  if kind in gemma.KINDS and "quantization_config" not in values:
    return gemma.from_theirs(values, where)
  if kind not in _KINDS or "auto_map" in values or "quantization_config" in values:
    surplus = [name for name in ("auto_map", "quantization_config") if name in values]
    raise ValueError(
      f"{where}: model_type is {kind!r}{' with ' if surplus else ''}"
      f"{', '.join(surplus)}, expected one of {_KINDS}, plain: T5, T5 1.1, Flan-T5, "
      "mT5, uMT5, MADLAD-400, UL2, ByT5; or T5Gemma, T5Gemma 2. Other networks can't "
      "be read."
    )
  for name, value in BUILT_IN.items():
    if values.get(name, value) not in (value, None):
      raise ValueError(
        f"{where}: {name} must be {value} for the network, got {values[name]!r}. The "
        "model can't be read."
      )
  usual = "relu" if kind == "t5" else "gated-gelu"
  layer = values.get("feed_forward_proj", usual)
  if not isinstance(layer, str) or layer not in ACTIVATIONS:
    raise ValueError(
      f"{where}: feed_forward_proj must be one of {tuple(ACTIVATIONS)}, got {layer!r}. "
      "The model can't be read."
    )
  if not isinstance(values.get("tie_word_embeddings", True), bool):
    raise ValueError(
      f"{where}: tie_word_embeddings must be true or false, got "
      f"{values['tie_word_embeddings']!r}. Copy the file again."
    )
  if values.get("num_decoder_layers") is None:
    values = {**values, "num_decoder_layers": values.get("num_layers")}
  sizes = {ours: values.get(theirs) for ours, theirs in SIZES.items()}
  for ours, size in sizes.items():
    if not is_whole(size, 1):
      raise ValueError(
        f"{where}: {SIZES[ours]} must be a whole number of at least 1, got {size!r}. "
        "Copy the file again."
      )
  padding = values.get("pad_token_id")
  has_padding = is_whole(padding, 0) and padding < sizes["vocab_size"]
  return T5Config(
    mlp_activations=ACTIVATIONS[layer],
    relpos_per_layer=kind == "umt5",
    start_token=padding if has_padding else 0,
    **sizes,
  )


def has_scaled_logits(found: Mapping[str, Any]) -> bool:
  """Returns whether features are multiplied by d_model^-0.5 before the logits.

  T5 1.0 multiplies, T5 1.1 does not. transformers 4 multiplies if embeddings are tied.
  transformers 5 has a setting for T5 and never multiplies for mT5.
  """
  if found.get("model_type") == "mt5":
    return False
  tied = found.get("tie_word_embeddings", True)
  return bool(found.get("scale_decoder_outputs", tied))
