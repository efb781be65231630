"""Hugging Face's folders, damaged or of other models; `case` says how to read it."""

import struct

import numpy as np

from tests import commands
from tests.errors import folders
from tests.errors.case import Case, other


def folder(did: str, make) -> Case:
  """A folder that can't be converted."""
  flags = (f"--from=HERE/{folders.NAME}", "--to=HERE/new")
  return other(did, commands.conversion, *flags, make=make)


HEAD = "lm_head.weight"
NORM = "decoder.final_layer_norm.weight"
FOLDERS = [
  folder(
    "a folder without config.json",
    folders.bad(lambda folder: (folder / folders.CONFIG).unlink()),
  ),
  folder(
    "a config.json cut off", folders.with_text("config.json", '{"model_type": "t5"')
  ),
  folder(
    "a decoder-only model's folder",
    folders.configured(model_type="llama", is_encoder_decoder=False),
  ),
  folder("T5's arrays under uMT5's config.json", folders.configured(model_type="umt5")),
  folder(
    "a forecaster of T5's parts, Chronos Bolt",
    folders.configured(architectures=["ChronosBoltModelForForecasting"]),
  ),
  folder("a T5's sizes under T5Gemma's name", folders.configured(model_type="t5gemma")),
  folder(
    "a folder that wants its own code run",
    folders.configured(auto_map={"AutoModel": "modeling.Mine"}),
  ),
  folder("a T5 with another layer norm", folders.configured(layer_norm_epsilon=1e-05)),
  folder(
    "a T5 with an unknown feed-forward layer",
    folders.configured(feed_forward_proj="gelu"),
  ),
  folder(
    "a feed-forward layer that is a list",
    folders.configured(feed_forward_proj=["gated-gelu"]),
  ),
  folder(
    "a tie_word_embeddings in quotes", folders.configured(tie_word_embeddings="false")
  ),
  folder("a width that is none", folders.configured(d_model=-16)),
  folder(
    "a billion layers in config.json", folders.configured(num_decoder_layers=10**9)
  ),
  folder("another model's config.json", folders.configured(vocab_size=128)),
  folder("a pickle, pytorch_model.bin, alone", folders.pickled),
  folder("a shard missing", folders.shard_missing),
  folder("a shard twice", folders.shards_mixed),
  folder(
    "an index that leads out of the folder",
    folders.of_index(
      lambda found: found["weight_map"].update({HEAD: "../../secret.safetensors"})
    ),
  ),
  folder(
    "an index without a map", folders.of_index(lambda found: found.pop("weight_map"))
  ),
  folder(
    "a file of weights cut off inside its header",
    folders.of_bytes(lambda data: data[:100]),
  ),
  folder(
    "a file of weights cut off at its end", folders.of_bytes(lambda data: data[:-4])
  ),
  folder(
    "a header longer than the file",
    folders.of_bytes(lambda data: struct.pack("<Q", 2**60) + data[8:]),
  ),
  folder("an array outside its file", folders.header(folders.outside)),
  folder("an array of an unknown type", folders.header(folders.unknown_type)),
  folder(
    "quantised weights",
    folders.arrays(lambda x: x.update({HEAD: x[HEAD].astype(np.int8)})),
  ),
  folder(
    "a folder of an encoder's weights",
    folders.arrays(
      lambda x: [x.pop(name) for name in list(x) if name.startswith("decoder")]
    ),
  ),
  folder("an array of a folder missing", folders.arrays(lambda x: x.pop(NORM))),
  folder(
    "an array too many",
    folders.arrays(lambda x: x.update({"classifier.weight": x[NORM]})),
  ),
  folder(
    "a transposed array",
    folders.arrays(lambda x: x.update({HEAD: np.ascontiguousarray(x[HEAD].T)})),
  ),
  folder("an embedding of no dimension", folders.scalars),
  folder(
    "two embeddings",
    folders.arrays(lambda x: x.update({"encoder.embed_tokens.weight": x[HEAD]})),
  ),
  folder(
    "weights of a folder with NaN", folders.arrays(lambda x: x[NORM].fill(np.nan))
  ),
  folder(
    "weights in float64 that float32 has no room for",
    folders.arrays(lambda x: x.update({NORM: x[NORM].astype(float) * 1e300})),
  ),
  folder(
    "a tokenizer.json of another kind",
    folders.with_text("tokenizer.json", '{"model": {"type": "WordPiece"}}'),
  ),
  Case(
    "a folder without a vocabulary",
    (f"--gin.VOCABULARY_PATH='HERE/{folders.NAME}'",),
    make=folders.bad(lambda folder: None),
  ),
  folder(
    "extra_ids in quotes", folders.tokenized(lambda found: found | {"extra_ids": "100"})
  ),
  folder(
    "an added_tokens_decoder that is a list",
    folders.tokenized(lambda found: {"added_tokens_decoder": [1]}),
  ),
  folder(
    "an added token that is none",
    folders.tokenized(lambda found: {"added_tokens_decoder": {"1": "<extra_id_0>"}}),
  ),
  folder(
    "added_tokens of tokenizer.json that are no list",
    folders.tokenized(lambda found: {"added_tokens": 5}, "tokenizer.json"),
  ),
]
