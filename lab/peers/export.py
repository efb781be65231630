"""Our parameters in a network of Hugging Face transformers."""

import os
import tempfile
from typing import Any

import jax
import torch
import transformers

from specdec_t5x.api import Model
from specdec_t5x.hugging_face import export


def to_torch(model: Model, device: str = "cpu") -> Any:
  """Returns transformers' network with our parameters, in float32.

  Torch is told to use all cores, here and in all that follows.

  Raises:
    ValueError: where transformers has no such network, or ours is not in float32.
  """
  config = model.network.config
  if config.dtype != "float32":
    raise ValueError(
      f"Peers decode in float32, got a network in {config.dtype!r}. Load it as float32."
    )
  # All cores, as XLA does; torch's own choice is one thread a physical core.
  torch.set_num_threads(os.cpu_count() or 1)
  with tempfile.TemporaryDirectory() as folder:
    export.write(folder, config, model.params)
    theirs = transformers.AutoConfig.from_pretrained(folder)
    if theirs.dense_act_fn == "gelu_new":
      theirs.dense_act_fn = "gelu_pytorch_tanh"  # The same formula as one kernel.
    network = transformers.AutoModelForSeq2SeqLM.from_pretrained(
      folder, config=theirs, attn_implementation="sdpa"
    )
  # The stacks have configurations of their own by now. This one is left to `generate`,
  # which makes as many layers of decoder cache as it has encoder layers.
  network.config.num_layers = config.num_decoder_layers
  return network.eval().to(device)


def torch_device() -> str:
  """Returns torch's name of the kind of device that JAX computes on.

  Raises:
    ValueError: where torch can't use it.
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
