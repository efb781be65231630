"""Writes networks as folders that transformers' from_pretrained reads."""

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
_METADATA = {"format": "pt"}  # transformers refuses files without this entry.


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
    folder: path of a missing or empty folder.
    config: configuration of the network.
    params: parameters of the network.
    vocabulary: path of the SentencePiece model; None for a network without texts.
    extra_ids: number of sentinel tokens after the pieces.
    shard_bytes: size of a file in bytes. Writing a file takes as much memory.

  Raises:
    ValueError: if the folder holds files, transformers does not support the network, or
      the vocabulary is missing. After an error the folder is unchanged.
  """
  path = pathlib.Path(folder)
  if path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise ValueError(f"{folder} already exists. Give a new folder.")
  if vocabulary and not os.path.isfile(vocabulary):
    raise ValueError(
      f"The vocabulary {vocabulary!r} is not a file. Give the network's own "
      "SentencePiece model."
    )
  theirs = settings.to_theirs(config)
  shards = list(_shards(config, params, shard_bytes))
  dtype = jax.tree.leaves(params)[0].dtype.name
  with all_or_nothing(path) as partial:
    _write_arrays(partial, shards)
    file_settings = {"dtype": dtype, "torch_dtype": dtype}
    if vocabulary:
      shutil.copyfile(vocabulary, partial / PIECES)
      tokenizer = {"tokenizer_class": "T5Tokenizer", "extra_ids": extra_ids}
      _write_json(partial / SETTINGS, tokenizer)
      pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
      file_settings["eos_token_id"] = pieces.eos_id()
    _write_json(partial / CONFIG, theirs | file_settings)
    # safetensors writes files that only the owner can read.
    for file in partial.glob("*.safetensors"):
      shutil.copymode(partial / CONFIG, file)


@contextlib.contextmanager
def all_or_nothing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a temporary folder, and moves the files to `folder` at the end.

  After an error `folder` is as before, and the temporary folder is removed.

  Raises:
    ValueError: if `folder` has a file of the same name as a new file.
  """
  is_new = not folder.exists()
  partial = folder / f".partial-{os.getpid()}"
  partial.mkdir(parents=True)
  moved: list[pathlib.Path] = []
  try:
    yield partial
    names = sorted(path.name for path in partial.iterdir())
    if taken := [name for name in names if (folder / name).exists()]:
      raise ValueError(f"{folder} already holds {taken}. Give another folder.")
    for name in names:
      moved.append((partial / name).replace(folder / name))
    partial.rmdir()
  except BaseException:
    if is_new:
      shutil.rmtree(folder)
    else:
      for path in (partial, *moved):
        _remove(path)
    raise


def _remove(path: pathlib.Path) -> None:
  if path.is_dir():
    shutil.rmtree(path)
  else:
    path.unlink()


def _shards(config, params, shard_bytes) -> Iterator[dict[str, tuple[bool, Any]]]:
  """Yields the contents of each file: by name, whether to transpose, and an array."""
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  shard = {}
  size = 0
  for path, array in sorted(flat.items()):
    if shard and size + array.nbytes > shard_bytes:
      yield shard
      shard = {}
      size = 0
    name = their_name(path, config)
    name = gemma.in_file(name) if config.is_gemma else name
    shard[name] = names.is_transposed(path), array
    size += array.nbytes
  yield shard


def _write_arrays(path, shards) -> None:
  count = len(shards)
  weight_map = {}
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
