"""Maps T5X's names of a T5's parameters to Hugging Face's names.

Hugging Face's matrices are transposed.

Source: transformers, models/t5/modeling_t5.py, and T5X, examples/t5/network.py.
"""

EMBEDDING, LOGITS = "token_embedder/embedding", "decoder/logits_dense/kernel"
_ATTENTION = {"query": "q", "key": "k", "value": "v", "out": "o"}
_PARTS = {
  "encoder": {
    "pre_attention_layer_norm": "layer.0.layer_norm",
    "attention": "layer.0.SelfAttention",
    "relpos_bias": "layer.0.SelfAttention.relative_attention_bias",
    "pre_mlp_layer_norm": "layer.1.layer_norm",
    "mlp": "layer.1.DenseReluDense",
  },
  "decoder": {
    "pre_self_attention_layer_norm": "layer.0.layer_norm",
    "self_attention": "layer.0.SelfAttention",
    "relpos_bias": "layer.0.SelfAttention.relative_attention_bias",
    "pre_cross_attention_layer_norm": "layer.1.layer_norm",
    "encoder_decoder_attention": "layer.1.EncDecAttention",
    "pre_mlp_layer_norm": "layer.2.layer_norm",
    "mlp": "layer.2.DenseReluDense",
  },
}
_POSITIONS = "block.0.layer.0.SelfAttention.relative_attention_bias"
_OTHERS = {
  EMBEDDING: "shared",
  "encoder/relpos_bias/rel_embedding": f"encoder.{_POSITIONS}",
  "encoder/encoder_norm/scale": "encoder.final_layer_norm",
  "decoder/relpos_bias/rel_embedding": f"decoder.{_POSITIONS}",
  "decoder/decoder_norm/scale": "decoder.final_layer_norm",
  LOGITS: "lm_head",
}
# Copies of the embedding in some files.
ALIASES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
# An array in old files of T5 1.0 that no network reads.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
# Suffixes of arrays of zeros that old conversions wrote: biases, for example of layer
# norms or logits, and buffers.
LEFTOVERS = ("bias", "_float_tensor")


def their_name(path: str) -> str:
  """Returns Hugging Face's name of a T5X parameter.

  >>> their_name("decoder/layers_3/mlp/wi_0/kernel")
  'decoder.block.3.layer.2.DenseReluDense.wi_0.weight'
  """
  if path in _OTHERS:
    return f"{_OTHERS[path]}.weight"
  stack, layer, part, *inner, _ = path.split("/")
  names = [_PARTS[stack][part], *(_ATTENTION.get(name, name) for name in inner)]
  return ".".join([stack, "block", layer.removeprefix("layers_"), *names, "weight"])


def is_transposed(path: str) -> bool:
  """Returns whether Hugging Face's array of a T5X parameter is transposed."""
  return path.endswith(("kernel", "rel_embedding"))
