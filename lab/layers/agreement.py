"""Alpha of a target that drafts for itself without some sublayers.

Alpha is computed on the target's outputs without sampling: the mean over the positions
of the outputs of the sum of min(p, q). q is the distribution of a draft that began up
to `block` tokens earlier. Keys and values before the draft are the full target's, as in
decoding. The set of skipped sublayers is an argument of the compiled program.

Shapes: B rows, E input length, T output length, N sublayers, K block.
"""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from benchmarks.study import NEVER, Study
from lab.trees import batches
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network.functional import extend_fn, logits_fn


class Agreement:
  """A function from skipped sublayers to alpha.

  Args:
    study: the target and its inputs.
    temperature: of p and q.
    block: draft length.
  """

  def __init__(self, study: Study, temperature: float, block: int):
    target = study.target
    self.names = target.network.sublayers
    self._target = target
    self._sampling = Sampling(temperature)
    self._block = block
    self._params = jax.device_put(target.params)
    decode = study.decode(temperature)
    encode = jax.jit(self._read)
    self._batches = []
    for texts, decoded, count in batches(decode, study.ids):
      outputs = decoded.tokens * (jnp.arange(len(texts)) < count)[:, None]
      self._batches.append((outputs, *encode(self._params, texts, outputs)))
    self._agreed = jax.jit(self._agreed_of)

  def __call__(self, skip: Collection[str]) -> float:
    """Returns alpha without the sublayers, a deterministic number from 0 to 1."""
    gates = jnp.array([name not in skip for name in self.names], jnp.float32)
    sums = [self._agreed(self._params, gates, batch) for batch in self._batches]
    agreed, count = (
      sum(float(x) for x in column) for column in zip(*sums, strict=True)
    )
    return agreed / count

  def _read(self, params, texts: Int[Array, "B E"], outputs: Int[Array, "B T"]):
    """Returns the decoder's input tokens, features, cache and first position."""
    length = outputs.shape[1]
    decoder = Decoder(self._target.network, block=self._block)
    keys = row_keys(jax.random.key(0), outputs.shape[0])
    plain = decoder.context(
      {"target": params}, len(keys), self._sampling, length, NEVER
    )
    state = plain.first_state(texts, keys)
    tokens = jnp.concatenate([state.last_tokens()[:, None], outputs[:, :-1]], axis=1)
    begin = state.lengths - 1
    _, features, cache = plain.target.extend(state.target_cache.at(begin), tokens)
    return tokens, features, cache, begin

  def _agreed_of(self, params, gates: Float[Array, "N"], batch):
    """Returns the sum of min(p, q) over the outputs' tokens, and the token count."""
    outputs, tokens, features, cache, begin = batch
    network = self._target.network
    sampling = self._sampling
    block = self._block
    extend = extend_fn(
      network, gated(params, dict(zip(self.names, gates, strict=True)))
    )
    project = logits_fn(network, params)
    width = -(-outputs.shape[1] // block) * block

    def padded(x):
      return jnp.pad(x, ((0, 0), (0, width - x.shape[1]), *[(0, 0)] * (x.ndim - 2)))

    def cut(x, at):
      return jax.lax.dynamic_slice_in_dim(padded(x), at, block, axis=1)

    def agreed_from(at):
      drafted, _, _ = extend(cache.at(begin + at), cut(tokens, at))
      p = adjusted_probs(project(cut(features, at)), sampling)
      q = adjusted_probs(drafted, sampling)
      return (jnp.minimum(p, q).sum(axis=-1) * (cut(outputs, at) > 0)).sum()

    sums = jax.lax.map(agreed_from, jnp.arange(0, width, block))
    return sums.sum(), (outputs > 0).sum()


# By kind of sublayer: module, last product, and the norm that T5Gemma adds.
_LAST = {
  "self": ("self_attention", "out", "post_self_attention_layer_norm"),
  "cross": ("encoder_decoder_attention", "out", "post_cross_attention_layer_norm"),
  "mlp": ("mlp", "wo", "post_mlp_layer_norm"),
}


def gated(params: Any, gates: Mapping[str, Float[Array, ""]]) -> Any:
  """Returns parameters that multiply the output of every sublayer by a gate.

  A T5 sublayer ends with a product without a bias, so the gate multiplies the product's
  kernel. A T5Gemma sublayer ends with a norm that multiplies by 1 + scale.

  Args:
    params: parameters of the target.
    gates: gates by name of sublayer, such as 'self_3'.
  """
  decoder = dict(params["decoder"])
  for name, gate in gates.items():
    kind, _, number = name.partition("_")
    part, product, norm = _LAST[kind]
    layer = dict(decoder[f"layers_{number}"])
    if norm in layer:
      scale = layer[norm]["scale"]
      layer[norm] = {"scale": (gate * (1 + scale) - 1).astype(scale.dtype)}
    else:
      kernel = layer[part][product]["kernel"]
      scaled = {"kernel": (gate * kernel).astype(kernel.dtype)}
      layer[part] = {**layer[part], product: scaled}
    decoder[f"layers_{number}"] = layer
  return {**params, "decoder": decoder}
