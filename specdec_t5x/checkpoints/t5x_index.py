"""The index of a checkpoint in T5X's format."""

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

import flax
import jax.numpy as jnp
from etils import epath
from flax import serialization

INDEX = "checkpoint"
Leaves = Mapping[str, Any]


def read(directory: epath.Path) -> Leaves:
  """Returns what the index says of each parameter, by its path: where it is stored.

  A small one is there itself.
  """
  is_stored = lambda _, leaf: isinstance(leaf, dict) and "driver" in leaf
  return flax.traverse_util.flatten_dict(
    _optimizer(directory)["target"], sep="/", is_leaf=is_stored
  )


def step(directory: epath.Path) -> int:
  """Returns the step that the index names."""
  return int(_optimizer(directory)["state"]["step"])


def _optimizer(directory: epath.Path) -> Mapping[str, Any]:
  contents = serialization.msgpack_restore((directory / INDEX).read_bytes())
  return contents["optimizer"]


def folder_of(leaf: Mapping[str, Any]) -> str:
  """Returns the name of a stored array's folder in the checkpoint's folder.

  A checkpoint that was written to a bucket names the bucket, too; its arrays lie beside
  the index wherever the checkpoint was copied to.
  """
  path = leaf.get("path") or leaf["kvstore"]["path"]
  return path.strip("/").split("/")[-1]


def check_whole(directory: epath.Path, leaves: Leaves) -> None:
  """Raises a ValueError where a compressed file of an array lacks its end.

  The end holds the checksum, which tensorstore then does without. A bucket has its own.
  """
  for chunk, size in _compressed_files(directory, leaves):
    with chunk.open("rb") as file:
      file.seek(-4, os.SEEK_END)
      if int.from_bytes(file.read(), "little") != size % 2**32:
        raise ValueError(f"{chunk} is cut off or altered")


def _compressed_files(directory, leaves) -> Iterator[tuple[epath.Path, int]]:
  """Yields a local checkpoint's files in gzip, and the bytes that each expands to."""
  if "://" in str(directory):
    return
  for leaf in leaves.values():
    stored = isinstance(leaf, dict) and leaf["metadata"]
    if not stored or (stored.get("compressor") or {}).get("id") != "gzip":
      continue
    size = math.prod(stored["chunks"]) * jnp.dtype(leaf["dtype"]).itemsize
    folder = directory / folder_of(leaf)
    files = folder.iterdir() if folder.is_dir() else ()
    yield from ((file, size) for file in files if not file.name.startswith("."))
