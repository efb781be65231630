"""Upstream T5X's decoding with our parameters: `temperature_sample` at T = 0.

Calls upstream's network, model and sampler like `python -m t5x.infer`. The `t5x` of
this repository (t5x_runtime) has no such network.
"""

import dataclasses
import importlib
from typing import Any

import jax
from jaxtyping import Array, Int

from specdec_t5x.network.config import T5Config


def greedy(config: T5Config, params: Any, max_length: int, eos_id: int):
  """Returns upstream's greedy decoding of inputs [B, E] to outputs [B, T]."""
  decoding, models, network = (
    importlib.import_module(f"t5x.{name}")
    for name in ("decoding", "models", "examples.t5.network")
  )
  names = [field.name for field in dataclasses.fields(network.T5Config)]
  upstream_config = network.T5Config(**{name: getattr(config, name) for name in names})
  module = network.Transformer(upstream_config)
  # `predict_batch_with_aux` needs no vocabularies and no optimizer.
  model = models.EncoderDecoderModel(
    module, None, None, None, decode_fn=decoding.temperature_sample
  )

  @jax.jit
  def run(params, inputs: Int[Array, "B E"]) -> Int[Array, "B T"]:
    outputs = jax.numpy.zeros((inputs.shape[0], max_length), inputs.dtype)
    batch = {"encoder_input_tokens": inputs, "decoder_input_tokens": outputs}
    settings = {"temperature": 0.0, "topk": 0, "eos_id": eos_id}
    outputs, _ = model.predict_batch_with_aux(params, batch, decoder_params=settings)
    return outputs

  return lambda inputs: run(params, inputs)
