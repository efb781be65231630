"""CTranslate2's greedy decoding with our weights, in float32 or in 8 bits.

The text of a token is the token id, so no tokenizer is needed. The converter takes a
transformers network. transformers 5.x marks the embeddings of every T5 as tied, and the
converter then scales logits, so `tie_word_embeddings` is set from our configuration.
"""

import os
import tempfile

import ctranslate2
import numpy as np
import torch
from ctranslate2.converters import transformers as converters

from lab.peers import export
from lab.peers.hugging_face import Program
from specdec_t5x.api import Model
from specdec_t5x.decoding.state import START_TOKEN

UNKNOWN = 2


def greedy(model: Model, kind: str, max_length: int, eos_id: int) -> Program:
  """Returns greedy decoding on every core."""
  with tempfile.TemporaryDirectory() as folder:
    _write(model, eos_id, kind, folder)
    threads = {"inter_threads": 1, "intra_threads": os.cpu_count()}
    translator = ctranslate2.Translator(folder, "cpu", compute_type=kind, **threads)

  def run(ids: np.ndarray) -> np.ndarray:
    tokens = [str(token) for token in ids[0, : np.count_nonzero(ids)]]
    results = translator.translate_batch(
      [tokens],
      beam_size=1,
      max_decoding_length=max_length,
      min_decoding_length=0,  # With the default, no output can be EOS alone.
      # Without the flag, CTranslate2 drops EOS and refuses outputs without EOS.
      return_end_token=True,
    )
    return np.array([[int(token) for token in results[0].hypotheses[0]]])

  return run


def _write(model: Model, eos_id: int, kind: str, folder: str) -> None:
  """Writes the network in CTranslate2's format."""
  config = model.network.config
  network = export.to_torch(model)
  network.config.tie_word_embeddings = config.logits_via_embedding
  network.config.num_layers = config.num_encoder_layers  # `export` set the decoder's.
  loader = converters.T5Loader()
  with torch.no_grad():
    spec = loader.get_model_spec(network)
  loader.set_vocabulary(spec, [str(token) for token in range(config.vocab_size)])
  spec.config.bos_token = spec.config.decoder_start_token = str(START_TOKEN)
  spec.config.eos_token = str(eos_id)
  spec.config.unk_token = str(UNKNOWN)
  spec.validate()
  spec.optimize(quantization=kind)
  spec.save(folder)
