"""Our networks as folders that transformers' from_pretrained reads."""

import contextlib
import json
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import flax
import jax
import numpy as np
import safetensors.numpy
import sentencepiece

from specdec_t5x.hugging_face import gemma, names, settings
from specdec_t5x.hugging_face.folder import CONFIG, their_name
from specdec_t5x.hugging_face.tensors import INDEX, SINGLE
from specdec_t5x.network.config import T5Config

PIECES, SETTINGS = "spiece.model", "tokenizer_config.json"
_METADATA = {"format": "pt"}  # Without it transformers refuses the file.


def write(
  folder: str,
  config: T5Config,
  params: Any,
  vocabulary: str | None = None,
  extra_ids: int = 0,
  shard_bytes: int = 2**30,
) -> None:
  """Writes a network into a new folder.

  Args:
    folder: which must not be there, or be empty.
    config: of the network.
    params: its parameters.
    vocabulary: path of the SentencePiece model; None where tokens are all there is.
    extra_ids: sentinel tokens after its pieces.
    shard_bytes: of a file, which is in memory when it is written.

  Raises:
    ValueError: where the folder holds files, transformers has no such network, or
      there is no such vocabulary. Then, and where a write fails, nothing is written.
  """
  path = pathlib.Path(folder)
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise ValueError(f"{folder} is there already. Name a folder that is not.")
  if vocabulary and not os.path.isfile(vocabulary):
    raise ValueError(
      f"The vocabulary {vocabulary!r} is no file. Give the SentencePiece model that "
      "the network was trained with."
    )
  theirs = settings.to_theirs(config)
  shards = list(_shards(config, params, shard_bytes))
  dtype = jax.tree.leaves(params)[0].dtype.name
  with all_or_nothing(path) as made:
    _write_arrays(made, shards)
    if vocabulary:
      shutil.copyfile(vocabulary, made / PIECES)
      tokenizer = {"tokenizer_class": "T5Tokenizer", "extra_ids": extra_ids}
      _write_json(made / SETTINGS, tokenizer)
    of_file = {"dtype": dtype, "torch_dtype": dtype}
    if vocabulary:
      pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
      of_file["eos_token_id"] = pieces.eos_id()
    _write_json(made / CONFIG, theirs | of_file)
    for file in made.glob("*.safetensors"):
      shutil.copymode(made / CONFIG, file)  # safetensors lets nobody else read them.


@contextlib.contextmanager
def all_or_nothing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields where to write what is in the folder once all of it is written.

  Where an error ends this, nothing of it is left.
  """
  is_new = not folder.exists()
  made = folder / f".partial-{os.getpid()}"
  made.mkdir(parents=True)
  try:
    yield made
    for path in sorted(made.iterdir()):
      path.replace(folder / path.name)
    made.rmdir()
  except BaseException:
    shutil.rmtree(folder if is_new else made)
    raise


def _shards(config, params, shard_bytes) -> Iterator[dict[str, tuple[bool, Any]]]:
  """Yields what goes into each file: by name, if it is transposed, and an array."""
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  shard, size = {}, 0
  for path, array in sorted(flat.items()):
    if shard and size + array.nbytes > shard_bytes:
      yield shard
      shard, size = {}, 0
    name = their_name(path, config)
    name = gemma.in_file(name) if config.is_gemma else name
    shard[name] = names.is_transposed(path), array
    size += array.nbytes
  yield shard


def _write_arrays(path, shards) -> None:
  count, weight_map = len(shards), {}
  for number, shard in enumerate(shards, 1):
    file = SINGLE if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
    arrays = {
      name: np.ascontiguousarray(np.asarray(array).T if transposed else array)
      for name, (transposed, array) in shard.items()
    }
    try:
      safetensors.numpy.save_file(arrays, path / file, metadata=_METADATA)
    except safetensors.SafetensorError as error:
      raise OSError(f"{path / file} can't be written ({error}).") from error
    weight_map |= dict.fromkeys(arrays, file)
  if count > 1:
    total = sum(array.nbytes for shard in shards for _, array in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(path / INDEX, index)


def _write_json(path, contents) -> None:
  path.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
