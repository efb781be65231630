"""A tiny random decoder-only pair; `tiny` saves the checkpoints."""

from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.network.config import GptConfig
from specdec_t5x.network.gpt import GptTransformer
from specdec_t5x.t5x_bridge.decoder_only import DecoderOnlyModel
from tests.t5x_bridge import tiny

LENGTHS = {"inputs": 6, "targets": 10}


def config(layers, width, vocab_size=tiny.VOCAB_SIZE):
  return GptConfig(**tiny.sizes(width, vocab_size), num_layers=layers)


TARGET = config(2, 16)
DRAFT = config(1, 8)


_OF_THE_MODEL = ("default_decoder_params", "task_feature_lengths")


def speculative(vocabulary, sampling=GREEDY, target=TARGET, draft=DRAFT, **settings):
  of_decoder, of_model = tiny.split_settings(settings, _OF_THE_MODEL)
  decoder = tiny.decoder(target, draft, **of_decoder)
  return model(decoder, vocabulary, sampling, **of_model)


def plain(vocabulary, sampling=GREEDY, **kwargs):
  return model(Decoder(GptTransformer(TARGET)), vocabulary, sampling, **kwargs)


def model(decoder, vocabulary, sampling, task_feature_lengths=LENGTHS, **kwargs):
  return DecoderOnlyModel(
    decoder, vocabulary, sampling, task_feature_lengths=task_feature_lengths, **kwargs
  )
