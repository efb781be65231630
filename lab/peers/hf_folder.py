"""Writes networks as folders for transformers' from_pretrained, without torch."""

import json
import pathlib
import shutil
from typing import Any

import flax
import jax
import numpy as np
import safetensors.numpy
import sentencepiece

from specdec_t5x.hugging_face import gemma, names, settings
from specdec_t5x.hugging_face.folder import CONFIG, their_name
from specdec_t5x.hugging_face.tensors import INDEX, SINGLE
from specdec_t5x.network.config import T5Config

# transformers needs a vision tower, which text does not use: the smallest tower.
_VISION = {
  "model_type": "siglip_vision_model",
  "hidden_size": 8,
  "intermediate_size": 8,
  "num_hidden_layers": 1,
  "num_attention_heads": 1,
  "image_size": 16,
  "patch_size": 8,
}
_TOKENS = {"eos_token_id": 1, "pad_token_id": 0}


def write(
  folder: str,
  config: T5Config,
  params: Any,
  vocabulary: str | None = None,
  shard_bytes: int = 2**30,
) -> None:
  """Writes a network into a folder.

  Args:
    folder: path of a missing or empty folder.
    config: configuration of the network.
    params: parameters of the network.
    vocabulary: path of the SentencePiece model; None for a network without texts.
    shard_bytes: size of a file in bytes.

  Raises:
    ValueError: if transformers does not support the network.
  """
  path = pathlib.Path(folder)
  contents = config_of(config)
  contents["dtype"] = contents["torch_dtype"] = jax.tree.leaves(params)[0].dtype.name
  path.mkdir(parents=True, exist_ok=True)
  _write_arrays(path, config, params, shard_bytes)
  if vocabulary:
    shutil.copyfile(vocabulary, path / "spiece.model")
    tokenizer = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
    _write_json(path / "tokenizer_config.json", tokenizer)
    pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
    contents["eos_token_id"] = pieces.eos_id()
  _write_json(path / CONFIG, contents)


def _write_arrays(path, config, params, shard_bytes) -> None:
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  shards = [{}]
  size = 0
  for parameter, array in sorted(flat.items()):
    if shards[-1] and size + array.nbytes > shard_bytes:
      shards.append({})
      size = 0
    name = their_name(parameter, config)
    if config.is_gemma and name != gemma.HEAD:
      name = f"model.{name}"
    array = np.asarray(array)
    array = array.T if names.is_transposed(parameter) else array
    shards[-1][name] = np.ascontiguousarray(array)
    size += array.nbytes
  count = len(shards)
  weight_map = {}
  for number, arrays in enumerate(shards, 1):
    file = SINGLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
    # transformers refuses files without this entry.
    safetensors.numpy.save_file(arrays, path / file, metadata={"format": "pt"})
    weight_map |= dict.fromkeys(arrays, file)
  if count > 1:
    total = sum(array.nbytes for arrays in shards for array in arrays.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(path / INDEX, index)


def _write_json(path, contents) -> None:
  path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def config_of(config: T5Config) -> dict[str, Any]:
  """Returns the config.json of our network.

  Raises:
    ValueError: if transformers does not support the feed-forward layer.
  """
  activations = {
    ours: theirs for theirs, ours in reversed(settings.ACTIVATIONS.items())
  }
  if config.is_gemma:
    activations = {("gelu", "linear"): ""}
  if config.mlp_activations not in activations:
    raise ValueError(
      f"mlp_activations must be one of {tuple(activations)} for transformers, got "
      f"{config.mlp_activations}. The network can't be written."
    )
  if config.is_gemma:
    return _config_of_gemma(config)
  kind = "umt5" if config.relpos_per_layer else "t5"
  return {
    "architectures": [f"{kind.upper()}ForConditionalGeneration"],
    "model_type": kind,
    **{theirs: getattr(config, ours) for ours, theirs in settings.SIZES.items()},
    "feed_forward_proj": activations[config.mlp_activations],
    "dropout_rate": config.dropout_rate,
    "tie_word_embeddings": config.logits_via_embedding,
    **settings.BUILT_IN,
    "decoder_start_token_id": config.start_token,
    **_TOKENS,
  }


def _config_of_gemma(config) -> dict[str, Any]:
  encoder = _side_of_gemma(config.encoder_side, config.num_encoder_layers)
  decoder = _side_of_gemma(config, config.num_decoder_layers)
  if config.merged:
    encoder = {
      "model_type": "t5gemma2_encoder",
      "text_config": encoder | {"model_type": "t5gemma2_text"},
      "vision_config": _VISION,
      "mm_tokens_per_image": 4,
    }
    decoder["model_type"] = "t5gemma2_decoder"
  else:
    encoder["model_type"] = decoder["model_type"] = "t5_gemma_module"
  name = "T5Gemma2" if config.merged else "T5Gemma"
  return {
    "architectures": [f"{name}ForConditionalGeneration"],
    "model_type": name.lower(),
    "encoder": encoder,
    "decoder": decoder,
    "vocab_size": config.vocab_size,
    "is_encoder_decoder": True,
    "dropout_rate": config.dropout_rate,
    "tie_word_embeddings": config.logits_via_embedding,
    "bos_token_id": config.start_token,
    **_TOKENS,
  }


def _side_of_gemma(side, layers) -> dict[str, Any]:
  types = side.layer_types
  full = {"rope_type": "default", "rope_theta": side.full_theta}
  if side.full_factor != 1:
    full |= {"rope_type": "linear", "factor": side.full_factor}
  sliding = {"rope_type": "default", "rope_theta": side.theta}
  both = {"full_attention": full, "sliding_attention": sliding}
  return {
    **{theirs: getattr(side, ours) for ours, theirs in gemma.SIZES.items()},
    "num_hidden_layers": layers,
    "layer_types": [f"{types[i % len(types)]}_attention" for i in range(layers)],
    "rope_parameters": both if side.merged else sliding,
    "attn_logit_softcapping": side.attention_cap or None,
    "final_logit_softcapping": side.logits_cap or None,
    **gemma.BUILT_IN,
    "bos_token_id": side.start_token,
    **_TOKENS,
  }
