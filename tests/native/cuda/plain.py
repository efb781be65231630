"""A step of a T5 decoder in plain double precision."""

import functools

import jax
import ml_dtypes
import numpy as np

from specdec_t5x.network.config import T5Config
from specdec_t5x.network.functional import initial_variables, network_for
from specdec_t5x.network.layers import bucket


def rounded(values):
  return np.asarray(values, ml_dtypes.bfloat16).astype(np.float64)


def gelu(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def parameters(random, layout, gated):
  """Returns random bfloat16 parameters of a T5 decoder, as doubles."""
  config = T5Config(
    **{"vocab_size": layout.vocab, "emb_dim": layout.width, "num_heads": layout.heads},
    **{"mlp_dim": layout.mlp, "num_encoder_layers": 0},
    num_decoder_layers=layout.layers,
    mlp_activations=("gelu", "linear") if gated else ("relu",),
    logits_via_embedding=not gated,
  )

  def draw(path, leaf):
    *_, module, name = (key.key for key in path)
    if name == "scale":
      return rounded(random.uniform(0.5, 1.5, leaf.shape))
    values = random.normal(size=leaf.shape)
    if name == "kernel":
      values /= np.sqrt(len(values)) * (8 if module == "query" else 1)
    return rounded(values)

  make = functools.partial(initial_variables, network_for(config))
  shapes = jax.eval_shape(make, jax.random.key(0))["params"]
  return jax.tree_util.tree_map_with_path(draw, shapes)


def step(params, caches, tokens, index, mask, gated, scale):
  """Returns logits and features of a token per row, and updates the caches."""
  found = [
    _row(params, caches, row, tokens[row], index[row], mask[row], gated)
    for row in range(len(tokens))
  ]
  features = np.stack(found)
  if gated:
    kernel = params["decoder"]["logits_dense"]["kernel"]
  else:
    kernel = params["token_embedder"]["embedding"].T
  return features @ kernel * scale, features


def _row(params, caches, row, token, slot, mask, gated):
  decoder = params["decoder"]
  x = params["token_embedder"]["embedding"][token]
  table = decoder["relpos_bias"]["rel_embedding"]
  biases = table[:, bucket(np.arange(slot + 1) - slot, False)]
  hidden = np.where(mask, 0, -1e10)[None]
  for i in range(len(caches["keys"])):
    layer = decoder[f"layers_{i}"]
    attention = layer["self_attention"]
    y = _norm(x, layer["pre_self_attention_layer_norm"])
    for kind, name in (("keys", "key"), ("values", "value")):
      new = (y @ attention[name]["kernel"]).reshape(-1, 64)
      caches[kind][i][row][:, slot] = rounded(new)
    held = [caches[kind][i][row][:, : slot + 1] for kind in ("keys", "values")]
    x = x + _attend(y, attention, *held, biases)
    attention = layer["encoder_decoder_attention"]
    y = _norm(x, layer["pre_cross_attention_layer_norm"])
    held = [caches[kind][i][row] for kind in ("cross_keys", "cross_values")]
    x = x + _attend(y, attention, *held, hidden)
    y = _norm(x, layer["pre_mlp_layer_norm"])
    mlp = layer["mlp"]
    if gated:
      inner = gelu(y @ mlp["wi_0"]["kernel"]) * (y @ mlp["wi_1"]["kernel"])
    else:
      inner = np.maximum(y @ mlp["wi"]["kernel"], 0)
    x = x + inner @ mlp["wo"]["kernel"]
  return _norm(x, decoder["decoder_norm"])


def _norm(x, parameters):
  return x / np.sqrt((x**2).mean() + 1e-6) * parameters["scale"]


def _attend(y, attention, keys, values, biases):
  query = (y @ attention["query"]["kernel"]).reshape(-1, 64)
  scores = np.einsum("hk,hsk->hs", query, keys) + biases
  weights = np.exp(scores - scores.max(axis=1, keepdims=True))
  weights /= weights.sum(axis=1, keepdims=True)
  mixed = np.einsum("hs,hsk->hk", weights, values).reshape(-1)
  return mixed @ attention["out"]["kernel"]
