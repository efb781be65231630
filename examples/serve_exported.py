"""Decodes with the files of `python -m specdec_t5x.export`, without this project.

The program needs jax, NumPy and flatbuffers (jax reads programs with flatbuffers):

  pip install jax flatbuffers
  python examples/serve_exported.py DIR INPUTS.npy OUTPUTS.npy --seed 0

INPUTS.npy has token ids, int32 [N, E], padded with 0. SentencePiece converts texts to
inputs (DIR/vocabulary.model; an encoder's inputs end with eos_id) and outputs to texts.
"""

import argparse
import json
import pathlib

import jax
import numpy as np


def load(folder):
  """Returns the decoding function, its batch size, and the record of the export."""
  folder = pathlib.Path(folder)
  about = json.loads((folder / "export.json").read_text())
  arrays, dtypes = np.load(folder / "params.npz"), about["arguments"]["params"]

  def dtype(name):
    return jax.numpy.dtype(dtypes[name])  # NumPy has no bfloat16.

  params = {x: jax.device_put(arrays[x].view(dtype(x))) for x in dtypes}
  size, name = max((int(size), name) for size, name in about["programs"].items())
  program = jax.export.deserialize(bytearray((folder / name).read_bytes()))
  decode = jax.jit(program.call)
  return (lambda inputs, keys: decode(params, inputs, keys)), size, about


def keys_of(seed, task, places):
  """Returns the keys of examples as in `t5x.infer`. Other keys work, too."""
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), seed), task)
  return jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(key, i))(places))


def main():
  """Decodes a file."""
  parser = argparse.ArgumentParser(description=__doc__)
  for name in ("folder", "inputs", "outputs"):
    parser.add_argument(name)
  parser.add_argument("--seed", type=int, help="default: the exported seed")
  args = parser.parse_args()
  decode, size, about = load(args.folder)
  seed = about["seed"] if args.seed is None else args.seed
  inputs, outputs = np.load(args.inputs), []
  padded = np.zeros((len(inputs), about["arguments"]["inputs"][1]), np.int32)
  padded[:, : inputs.shape[1]] = inputs
  for first in range(0, len(inputs), size):
    places = np.minimum(first + np.arange(size), len(inputs) - 1)  # Fills the batch.
    tokens, _ = decode(padded[places], keys_of(seed, about["task"], places))
    outputs.append(np.asarray(tokens))
  np.save(args.outputs, np.concatenate(outputs)[: len(inputs)])


if __name__ == "__main__":
  main()
