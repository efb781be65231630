"""A Hugging Face folder of a tiny T5, and what can be wrong with it."""

import json
import pathlib
import pickle
import struct

import numpy as np
import safetensors.numpy

from specdec_t5x.hugging_face import export
from tests.t5x_bridge import tiny

NAME = "theirs"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
INDEX = f"{WEIGHTS}.index.json"
TOKENIZER = "tokenizer_config.json"


def write(folder: pathlib.Path, **how) -> pathlib.Path:
  """Writes a folder that is right."""
  export.write(str(folder), tiny.TARGET, tiny.drawn(tiny.TARGET), **how)
  return folder


def bad(change, **how):
  """Returns what makes a folder, and `change`s it."""
  return lambda pair, here: change(write(here / NAME, **how))


def set_config(folder, **settings):
  found = json.loads((folder / CONFIG).read_text())
  (folder / CONFIG).write_text(json.dumps(found | settings))


def set_arrays(folder, edit):
  """Writes a folder's arrays anew, as `edit` changes them."""
  found = safetensors.numpy.load_file(folder / WEIGHTS)
  edit(found)
  replace_arrays(folder, found)


def replace_arrays(folder, arrays):
  safetensors.numpy.save_file(arrays, folder / WEIGHTS, metadata={"format": "pt"})


def configured(**settings):
  return bad(lambda folder: set_config(folder, **settings))


def with_text(name, text):
  return bad(lambda folder: (folder / name).write_text(text))


def arrays(edit):
  """Returns what makes a folder whose arrays `edit` changed."""
  return bad(lambda folder: set_arrays(folder, edit))


def tokenized(edit, name=TOKENIZER):
  """Returns what makes a folder with a vocabulary, one of whose JSON files changed."""

  def make(pair, here):
    folder = write(here / NAME, vocabulary=str(pair.root / "tiny.model"))
    found = json.loads((folder / name).read_text()) if name == TOKENIZER else {}
    (folder / name).write_text(json.dumps(edit(found)))

  return make


def scalars(pair, here):
  """Embeddings of no dimension, in a folder of tied ones."""
  configured(tie_word_embeddings=True)(pair, here)
  scalar = np.zeros((), np.float32)
  changed = dict.fromkeys(("shared.weight", "lm_head.weight"), scalar)
  set_arrays(here / NAME, lambda found: found.update(changed))


def of_bytes(edit):
  path = lambda folder: folder / WEIGHTS
  return bad(lambda folder: path(folder).write_bytes(edit(path(folder).read_bytes())))


def of_index(edit):
  """Returns what makes a folder of several files whose index `edit` changed."""

  def change(folder):
    found = json.loads((folder / INDEX).read_text())
    edit(found)
    (folder / INDEX).write_text(json.dumps(found))

  return bad(change, shard_bytes=4096)


def shard_missing(pair, here):
  write(here / NAME, shard_bytes=4096)
  next((here / NAME).glob("model-00002-*")).unlink()


def shards_mixed(pair, here):
  """One file in place of another."""
  write(here / NAME, shard_bytes=4096)
  first, second = sorted((here / NAME).glob("model-0000[12]-*"))
  second.write_bytes(first.read_bytes())


def pickled(pair, here):
  folder = write(here / NAME)
  (folder / WEIGHTS).unlink()
  (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def header(edit):
  """Returns what changes the JSON that a file begins with, its data kept."""

  def change(data):
    size = struct.unpack("<Q", data[:8])[0]
    made = json.dumps(edit(json.loads(data[8 : 8 + size]))).encode()
    return struct.pack("<Q", len(made)) + made + data[8 + size :]

  return of_bytes(change)


def unknown_type(found):
  name = sorted(set(found) - {"__metadata__"})[0]
  return found | {name: found[name] | {"dtype": "Q4_0"}}


def outside(found):
  name = sorted(set(found) - {"__metadata__"})[0]
  begin, end = found[name]["data_offsets"]
  return found | {name: found[name] | {"data_offsets": [begin + 2**40, end + 2**40]}}
