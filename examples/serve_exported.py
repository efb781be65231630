"""Exports a speculative decode with jax.export, and decodes with the exported file.

  python examples/serve_exported.py export FOLDER
  python examples/serve_exported.py serve FOLDER

Serving needs jax, flatbuffers and NumPy alone.
"""

import dataclasses
import pathlib
import sys

import jax
import numpy as np

TEXT = "translate English to German: Jan says that he returned the present to Oskar."


def export(folder: pathlib.Path) -> np.ndarray:
  """Writes the embedded pair's decode of one row, and returns the row's tokens."""
  from flax.traverse_util import flatten_dict, unflatten_dict

  import specdec_t5x
  from specdec_t5x.core.distributions import GREEDY
  from specdec_t5x.decoding.decoder import Decoder
  from specdec_t5x.demo import embedded
  from specdec_t5x.drafters.draft_model import DraftModel
  from specdec_t5x.network.functional import network_for
  from specdec_t5x.vocabularies.opening import open_vocabulary

  def portable(model):
    # Our kernels are compiled on the running machine. XLA's products run everywhere.
    config = dataclasses.replace(model.network.config, products="xla", head="full")
    return network_for(config)

  target = specdec_t5x.load_model(embedded.target())
  draft = specdec_t5x.load_model(embedded.draft())
  vocabulary = open_vocabulary(embedded.vocabulary())
  decoder = Decoder(portable(target), DraftModel(portable(draft), gamma=5))
  params = flatten_dict({"target": target.params, "draft": draft.params}, sep="/")
  inputs = np.array([[*vocabulary.encode(TEXT), vocabulary.eos_id]], np.int32)

  @jax.jit
  def decode(params, inputs, seed):
    keys = jax.random.split(jax.random.key(seed), len(inputs))
    params = unflatten_dict(params, sep="/")
    return decoder.decode(params, inputs, keys, GREEDY, 64, vocabulary.eos_id).tokens

  arguments = params, inputs, np.uint32(0)
  platforms = ("cpu", "cuda", "tpu")  # The platforms need not be there.
  program = jax.export.export(decode, platforms=platforms)(*arguments)
  folder.mkdir(parents=True)
  (folder / "decode.jax").write_bytes(program.serialize())
  np.savez(folder / "params.npz", **params)
  np.save(folder / "inputs.npy", inputs)
  return np.asarray(decode(*arguments))


def serve(folder: pathlib.Path) -> np.ndarray:
  """Decodes the folder's inputs with the folder's program."""
  if not (folder / "decode.jax").exists():
    sys.exit(f"{folder} holds no exported decode: first run `export {folder}`.")
  program = jax.export.deserialize(bytearray((folder / "decode.jax").read_bytes()))
  with np.load(folder / "params.npz") as file:
    params = dict(file)
  return np.asarray(program.call(params, np.load(folder / "inputs.npy"), np.uint32(0)))


if __name__ == "__main__":
  jobs = {"export": export, "serve": serve}
  if len(sys.argv) != 3 or sys.argv[1] not in jobs:
    sys.exit(__doc__)
  tokens = jobs[sys.argv[1]](pathlib.Path(sys.argv[2]))
  print(*tokens[0][tokens[0] > 0])
