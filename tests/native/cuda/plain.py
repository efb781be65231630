"""A step of a T5 decoder in plain double precision."""

import ml_dtypes
import numpy as np

from specdec_t5x.network.layers import bucket


def rounded(values):
  return np.asarray(values, ml_dtypes.bfloat16).astype(np.float64)


def gelu(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def parameters(random, layout, gated):
  """Returns random bfloat16 parameters of a T5 decoder, as doubles."""
  width = layout.width
  joined = layout.heads * 64
  mlp = layout.mlp

  def dense(inputs, outputs, scale=1.0):
    values = random.normal(size=(inputs, outputs)) * scale / np.sqrt(inputs)
    return {"kernel": rounded(values)}

  def norm():
    return {"scale": rounded(random.uniform(0.5, 1.5, width))}

  def attention():
    return {
      "query": dense(width, joined, 1 / 8),
      "key": dense(width, joined),
      "value": dense(width, joined),
      "out": dense(joined, width),
    }

  def layer():
    names = ("wi_0", "wi_1") if gated else ("wi",)
    return {
      "pre_self_attention_layer_norm": norm(),
      "self_attention": attention(),
      "pre_cross_attention_layer_norm": norm(),
      "encoder_decoder_attention": attention(),
      "pre_mlp_layer_norm": norm(),
      "mlp": {**{n: dense(width, mlp) for n in names}, "wo": dense(mlp, width)},
    }

  decoder = {f"layers_{i}": layer() for i in range(layout.layers)}
  decoder["decoder_norm"] = norm()
  decoder["relpos_bias"] = {
    "rel_embedding": rounded(random.normal(size=(layout.heads, 32)))
  }
  if gated:
    decoder["logits_dense"] = dense(width, layout.vocab)
  embedding = rounded(random.normal(size=(layout.vocab, width)))
  return {"decoder": decoder, "token_embedder": {"embedding": embedding}}


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
