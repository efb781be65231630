"""A tiny random decoder-only pair; `tiny` saves its checkpoints, too."""

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.network.config import GptConfig
from specdec_t5x.network.gpt import GptTransformer
from specdec_t5x.t5x_bridge.decoder_only import (
  PlainDecoderOnlyModel,
  SpeculativeDecoderOnlyModel,
)
from tests.t5x_bridge import tiny

LENGTHS = {"inputs": 6, "targets": 10}


def config(layers, width, vocab_size=tiny.VOCAB_SIZE):
  return GptConfig(
    vocab_size=vocab_size,
    emb_dim=width,
    num_heads=2,
    head_dim=8,
    mlp_dim=2 * width,
    num_layers=layers,
    mlp_activations=("gelu", "linear"),
  )


TARGET, DRAFT = config(2, 16), config(1, 8)


def speculative(vocabulary, sampling=None, target=TARGET, draft=DRAFT, **kwargs):
  networks = GptTransformer(target), draft and GptTransformer(draft)
  settings = {"gamma": 3, "task_feature_lengths": LENGTHS, **kwargs}
  sampling = sampling or Sampling(0.0)
  return SpeculativeDecoderOnlyModel(
    *networks, vocabulary, sampling=sampling, **settings
  )


def plain(vocabulary, sampling=None, **kwargs):
  settings = {"task_feature_lengths": LENGTHS, **kwargs}
  return PlainDecoderOnlyModel(
    GptTransformer(TARGET), vocabulary, sampling or Sampling(0.0), **settings
  )
