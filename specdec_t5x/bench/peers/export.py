"""Our parameters in a network of Hugging Face transformers, in memory alone."""

import os
from typing import Any

import flax
import jax
import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration

from specdec_t5x.decoding.state import START_TOKEN
from specdec_t5x.hugging_face.names import is_transposed, their_name
from specdec_t5x.network.config import T5Config as OurConfig
from specdec_t5x.network.layers import MAX_DISTANCE, NUM_BUCKETS

PAD = 0
FEED_FORWARD = {
  ("relu",): "relu",
  # T5X's tanh approximation; "gated-gelu" is the same formula, one kernel a term.
  ("gelu", "linear"): "gated-gelu_pytorch_tanh",
}


def to_torch(config: OurConfig, params: Any, device: str = "cpu") -> Any:
  """Returns a T5ForConditionalGeneration with our parameters, in memory alone.

  Torch is told to use all cores, here and in all that follows.

  Raises:
    ValueError: where the network has no counterpart, or the parameters don't set each
      of the counterpart's exactly once.
  """
  # All cores, as XLA does; torch's own choice is one thread a physical core.
  torch.set_num_threads(os.cpu_count() or 1)
  network = T5ForConditionalGeneration(_their_config(config))
  if not config.logits_via_embedding:
    # transformers 5 ties them whatever the configuration says.
    network.lm_head.weight = torch.nn.Parameter(torch.empty_like(network.shared.weight))
  # The stacks have configurations of their own by now. This one is left to `generate`,
  # which makes as many layers of decoder cache as it has encoder layers.
  network.config.num_layers = config.num_decoder_layers
  _set_parameters(network, params)
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


def _their_config(config):
  if config.mlp_activations not in FEED_FORWARD or config.dtype != "float32":
    raise ValueError(
      f"Expected mlp_activations among {list(FEED_FORWARD)} and dtype 'float32', got "
      f"{config.mlp_activations} and {config.dtype!r}. Load the checkpoint as float32; "
      "other activations can't be compared here."
    )
  return T5Config(
    vocab_size=config.vocab_size,
    d_model=config.emb_dim,
    d_kv=config.head_dim,
    d_ff=config.mlp_dim,
    num_layers=config.num_encoder_layers,
    num_decoder_layers=config.num_decoder_layers,
    num_heads=config.num_heads,
    relative_attention_num_buckets=NUM_BUCKETS,
    relative_attention_max_distance=MAX_DISTANCE,
    dropout_rate=0.0,
    feed_forward_proj=FEED_FORWARD[config.mlp_activations],
    # Also says whether features are scaled by 1 / sqrt(D) before the projection.
    tie_word_embeddings=config.logits_via_embedding,
    pad_token_id=PAD,
    # Or `generate` takes this one where its settings have None.
    eos_token_id=None,
    decoder_start_token_id=START_TOKEN,
    attn_implementation="sdpa",
  )


def _set_parameters(network, params):
  ours = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  values = [(their_name(path), path, np.asarray(x)) for path, x in ours.items()]
  theirs = dict(network.named_parameters())  # A shared one is named once.
  if sorted(name for name, *_ in values) != sorted(theirs):
    differing = sorted({name for name, *_ in values} ^ set(theirs))
    raise ValueError(
      f"Expected each of the {len(theirs)} parameters to be set once, got "
      f"{len(values)} values; in one of the two alone: {differing}. Give the "
      "configuration that the parameters were made with."
    )
  for name, path, value in values:
    value = value.T if is_transposed(path) else value
    if value.shape != tuple(theirs[name].shape):
      raise ValueError(
        f"{path}: expected {tuple(theirs[name].shape)} for {name}, got {value.shape}. "
        "Give the configuration that the parameters were made with."
      )
    theirs[name].data.copy_(torch.tensor(value))
