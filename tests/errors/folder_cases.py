"""Hugging Face's folders, damaged or of other models; `case` says how to read it."""

import struct

import numpy as np

from tests import commands
from tests.errors import folders
from tests.errors.case import Case, other


def folder(did: str, says: str, make) -> Case:
  """A folder that can't be converted."""
  flags = (f"--from=HERE/{folders.NAME}", "--to=HERE/new")
  return other(did, says, commands.conversion, *flags, make=make)


HEAD = "lm_head.weight"
NORM = "decoder.final_layer_norm.weight"
FOLDERS = [
  folder(
    "a folder without config.json",
    "is no Hugging Face folder",
    folders.bad(lambda folder: (folder / folders.CONFIG).unlink()),
  ),
  folder(
    "a config.json cut off",
    "config.json can't be read",
    folders.with_text("config.json", '{"model_type": "t5"'),
  ),
  folder(
    "a decoder-only model's folder",
    "model_type is 'llama'",
    folders.configured(model_type="llama", is_encoder_decoder=False),
  ),
  folder(
    "UMT5, which has a relative bias in each layer",
    "model_type is 'umt5'",
    folders.configured(model_type="umt5"),
  ),
  folder(
    "a folder that wants its own code run",
    "model_type is 't5' with auto_map",
    folders.configured(auto_map={"AutoModel": "modeling.Mine"}),
  ),
  folder(
    "a T5 with another layer norm",
    "layer_norm_epsilon is 1e-05",
    folders.configured(layer_norm_epsilon=1e-5),
  ),
  folder(
    "a T5 with an unknown feed-forward layer",
    "feed_forward_proj is 'gelu'",
    folders.configured(feed_forward_proj="gelu"),
  ),
  folder(
    "a feed-forward layer that is a list",
    "feed_forward_proj is ['gated-gelu'], expected one of",
    folders.configured(feed_forward_proj=["gated-gelu"]),
  ),
  folder(
    "a tie_word_embeddings in quotes",
    "tie_word_embeddings must be true or false, got 'false'",
    folders.configured(tie_word_embeddings="false"),
  ),
  folder(
    "a width that is none",
    "d_model must be a whole number of at least 1, got -16",
    folders.configured(d_model=-16),
  ),
  folder(
    "a billion layers in config.json",
    "says 1000000000 decoder layers, the files hold 2",
    folders.configured(num_decoder_layers=10**9),
  ),
  folder(
    "another model's config.json",
    "by config.json it is (128, 16)",
    folders.configured(vocab_size=128),
  ),
  folder(
    "a pickle, pytorch_model.bin, alone", "pickles run what is in", folders.pickled
  ),
  folder("a shard missing", "files that its index names", folders.shard_missing),
  folder("a shard twice", "which HERE", folders.shards_mixed),
  folder(
    "an index that leads out of the folder",
    "names the file '../../secret.safetensors'",
    folders.of_index(
      lambda found: found["weight_map"].update({HEAD: "../../secret.safetensors"})
    ),
  ),
  folder(
    "an index without a map",
    "has no 'weight_map'",
    folders.of_index(lambda found: found.pop("weight_map")),
  ),
  folder(
    "a file of weights cut off inside its header",
    "is no whole safetensors file",
    folders.of_bytes(lambda data: data[:100]),
  ),
  folder(
    "a file of weights cut off at its end",
    "no whole safetensors file (Error while deserializing header",
    folders.of_bytes(lambda data: data[:-4]),
  ),
  folder(
    "a header longer than the file",
    "header: header too large",
    folders.of_bytes(lambda data: struct.pack("<Q", 2**60) + data[8:]),
  ),
  folder(
    "an array outside its file",
    "is no whole safetensors",
    folders.header(folders.outside),
  ),
  folder(
    "an array of an unknown type",
    "unknown variant",
    folders.header(folders.unknown_type),
  ),
  folder(
    "quantised weights",
    "is I8, expected one of",
    folders.arrays(lambda x: x.update({HEAD: x[HEAD].astype(np.int8)})),
  ),
  folder(
    "a folder of an encoder's weights",
    "decoder layers, the files hold 0",
    folders.arrays(
      lambda x: [x.pop(name) for name in list(x) if name.startswith("decoder")]
    ),
  ),
  folder(
    "an array missing",
    "arrays, decoder.final_layer_norm.weight first",
    folders.arrays(lambda x: x.pop(NORM)),
  ),
  folder(
    "an array too many",
    "a T5 has no place for, classifier.weight",
    folders.arrays(lambda x: x.update({"classifier.weight": x[NORM]})),
  ),
  folder(
    "a transposed array",
    "has shape (16, 64), but by config.json it is (64, 16)",
    folders.arrays(lambda x: x.update({HEAD: np.ascontiguousarray(x[HEAD].T)})),
  ),
  folder(
    "an embedding of no dimension",
    "shape (), but by config.json it is (64, 16)",
    folders.scalars,
  ),
  folder(
    "two embeddings",
    "encoder.embed_tokens.weight is not shared.weight",
    folders.arrays(lambda x: x.update({"encoder.embed_tokens.weight": x[HEAD]})),
  ),
  folder(
    "weights of a folder with NaN",
    "decoder/decoder_norm/scale is not finite",
    folders.arrays(lambda x: x[NORM].fill(np.nan)),
  ),
  folder(
    "weights in float64 that float32 has no room for",
    "decoder/decoder_norm/scale is not finite in float32",
    folders.arrays(lambda x: x.update({NORM: x[NORM].astype(float) * 1e300})),
  ),
  folder(
    "extra_ids in quotes",
    "tokenizer_config.json: extra_ids must be a whole number of at least 0, got '100'",
    folders.tokenized(lambda found: found | {"extra_ids": "100"}),
  ),
  folder(
    "an added_tokens_decoder that is a list",
    "tokenizer_config.json: added_tokens_decoder must be a JSON object, got [1]",
    folders.tokenized(lambda found: {"added_tokens_decoder": [1]}),
  ),
  folder(
    "an added token that is none",
    "tokenizer_config.json: added_tokens_decoder must hold objects with text as 'conte",
    folders.tokenized(lambda found: {"added_tokens_decoder": {"1": "<extra_id_0>"}}),
  ),
  folder(
    "added_tokens of tokenizer.json that are no list",
    "tokenizer.json: added_tokens must be a JSON list, got 5",
    folders.tokenized(lambda found: {"added_tokens": 5}, "tokenizer.json"),
  ),
]
