"""A Hugging Face folder of a tiny T5, and faults of the folder."""

import json
import pathlib
import pickle
import struct

import flax
import numpy as np
import safetensors.numpy

from lab.peers import hf_folder
from tests import damage
from tests.t5x_bridge import tiny
from tests.vocabularies import made

NAME = "theirs"
WEIGHTS, CONFIG = "model.safetensors", "config.json"
INDEX = f"{WEIGHTS}.index.json"
HEAD, NORM = "lm_head.weight", "decoder.final_layer_norm.weight"


def write(folder: pathlib.Path, **how) -> pathlib.Path:
  hf_folder.write(str(folder), tiny.TARGET, tiny.drawn(tiny.TARGET), **how)
  return folder


def make(case, folder, fill):
  """Writes the folder of a case, without the case's `make` function."""
  how = {k: fill(x) if isinstance(x, str) else x for k, x in case.write.items()}
  write(folder, **how)
  for name, settings in case.json.items():
    set_json(folder / name, settings)
  if case.arrays:
    set_arrays(folder, lambda arrays: change_arrays(arrays, case.arrays))


def set_json(path, settings):
  contents = json.loads(path.read_text()) if path.exists() else {}
  path.write_text(json.dumps(contents | settings))


def set_config(folder, **settings):
  set_json(folder / CONFIG, settings)


def set_arrays(folder, edit):
  """Replaces a folder's arrays by the result of `edit`."""
  arrays = safetensors.numpy.load_file(folder / WEIGHTS)
  edit(arrays)
  replace_arrays(folder, arrays)


def replace_arrays(folder, arrays):
  safetensors.numpy.save_file(arrays, folder / WEIGHTS, metadata={"format": "pt"})


def change_arrays(arrays, how):
  """Changes arrays by the name of a change."""
  match how:
    case "int8":
      arrays[HEAD] = arrays[HEAD].astype(np.int8)
    case "no decoder":
      for name in [name for name in arrays if name.startswith("decoder")]:
        del arrays[name]
    case "one missing":
      del arrays[NORM]
    case "one too many":
      arrays["classifier.weight"] = arrays[NORM]
    case "bias":
      arrays[NORM.replace("weight", "bias")] = arrays[NORM]
    case "transposed":
      arrays[HEAD] = np.ascontiguousarray(arrays[HEAD].T)
    case "two embeddings":
      arrays["encoder.embed_tokens.weight"] = arrays[HEAD]
    case "scalars":
      arrays["shared.weight"] = arrays[HEAD] = np.zeros((), np.float32)
    case "nan":
      arrays[NORM].fill(np.nan)
    case "beyond float32":
      arrays[NORM] = arrays[NORM].astype(float) * 1e300
    case _:
      raise ValueError(how)


def without_config(folder):
  (folder / CONFIG).unlink()


def pickled(folder):
  (folder / WEIGHTS).unlink()
  (folder / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def pickle_pointer(folder):
  pickled(folder)
  damage.make_pointer(folder / "pytorch_model.bin")


def adapter_with_config(folder):
  """Replaces the weights by an adapter's."""
  (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
  (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')


def adapter(folder):
  """Writes the files that PEFT writes, without config.json."""
  adapter_with_config(folder)
  (folder / CONFIG).unlink()


def flax_cut_off(folder):
  """Writes a truncated file in Flax's format: a map, a name, half of an array."""
  (folder / WEIGHTS).unlink()
  array = {"shared": {"embedding": np.ones((64, 16), np.float32)}}
  contents = flax.serialization.msgpack_serialize(array)
  (folder / "flax_model.msgpack").write_bytes(contents[:2000])


def pointer(folder):
  damage.make_pointer(folder / WEIGHTS)


# ---- Folders with several files of weights ----


def shard_missing(folder):
  next(folder.glob("model-00002-*")).unlink()


def shards_mixed(folder):
  """Replaces the second file by a copy of the first file."""
  first, second = sorted(folder.glob("model-0000[12]-*"))
  second.write_bytes(first.read_bytes())


def set_map(folder, edit):
  files = json.loads((folder / INDEX).read_text())["weight_map"]
  edit(files)
  set_json(folder / INDEX, {"weight_map": files})


def index_leads_out(folder):
  set_map(folder, lambda files: files.update({HEAD: "../../secret.safetensors"}))


def listed_alone(folder):
  set_map(folder, lambda files: files.update({"encoder.norm": files[HEAD]}))


def index_without_map(folder):
  contents = json.loads((folder / INDEX).read_text())
  del contents["weight_map"]
  (folder / INDEX).write_text(json.dumps(contents))


# ---- The bytes of the weights: a length, a header in JSON, the arrays' data ----


def set_bytes(folder, edit):
  path = folder / WEIGHTS
  path.write_bytes(edit(path.read_bytes()))


def cut_in_header(folder):
  set_bytes(folder, lambda data: data[:100])


def cut_at_end(folder):
  set_bytes(folder, lambda data: data[:-4])


def long_header(folder):
  set_bytes(folder, lambda data: struct.pack("<Q", 2**60) + data[8:])


def set_first(folder, name, edit):
  """Changes the header's entry of the first array; the data stay."""

  def change(data):
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    first = header[min(set(header) - {"__metadata__"})]
    first[name] = edit(first[name])
    made = json.dumps(header).encode()
    return struct.pack("<Q", len(made)) + made + data[8 + size :]

  set_bytes(folder, change)


def unknown_type(folder):
  set_first(folder, "dtype", lambda _: "Q4_0")


def array_outside(folder):
  set_first(folder, "data_offsets", lambda ends: [end + 2**40 for end in ends])


def tokenizer_without_end(folder):
  set_config(folder, eos_token_id=None)
  made.saved(folder, made.words())


def large_tokenizer(folder):
  made.byte_level(folder)
