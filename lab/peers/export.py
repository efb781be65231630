"""Converts our parameters to a Hugging Face transformers network."""

import os
import tempfile
from typing import Any

import jax
import torch
import transformers

from lab.peers import hf_folder
from specdec_t5x.api import Model


def to_torch(model: Model, device: str = "cpu") -> Any:
  """Returns a transformers network with our parameters, in float32.

  Sets torch's number of threads to the number of cores, for the whole process.

  Raises:
    ValueError: if transformers has no such network, or the dtype is not float32.
  """
  config = model.network.config
  if config.dtype != "float32":
    raise ValueError(
      f"Peers decode in float32, got a network in {config.dtype!r}. Load the "
      "parameters in float32."
    )
  # XLA uses every core; torch's default is a thread per physical core.
  torch.set_num_threads(os.cpu_count() or 1)
  with tempfile.TemporaryDirectory() as folder:
    hf_folder.write(folder, config, model.params)
    theirs = transformers.AutoConfig.from_pretrained(folder)
    if theirs.dense_act_fn == "gelu_new":
      theirs.dense_act_fn = "gelu_pytorch_tanh"  # A single kernel for an equal formula.
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(
      folder, config=theirs, attn_implementation="sdpa"
    )
  # Encoder and decoder have their own configurations now. Only `generate` still reads
  # this configuration: `num_layers`, the encoder's, sizes the decoder cache.
  network.config.num_layers = config.num_decoder_layers
  return network.eval().to(device)


def torch_device() -> str:
  """Returns torch's name of JAX's default device.

  Raises:
    ValueError: if torch can't use the device.
  """
  backend = jax.default_backend()
  if backend == "cpu":
    return "cpu"
  if backend == "gpu" and torch.cuda.is_available():
    return "cuda"
  raise ValueError(
    f"JAX computes on {backend!r}, which torch {torch.__version__} can't use. Install "
    "a torch that can, or compare on CPU with JAX_PLATFORMS=cpu."
  )
