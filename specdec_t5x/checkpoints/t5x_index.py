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
  """Returns the index's entry of each parameter, by path.

  The entry of a large parameter is the parameter's location. The entry of a small
  parameter is the array.
  """

  def is_location(_, leaf):
    return isinstance(leaf, dict) and "driver" in leaf

  return flax.traverse_util.flatten_dict(
    _optimizer(directory)["target"], sep="/", is_leaf=is_location
  )


def step(directory: epath.Path) -> int:
  """Returns the step that the index names."""
  return int(_optimizer(directory)["state"]["step"])


def _optimizer(directory: epath.Path) -> Mapping[str, Any]:
  contents = serialization.msgpack_restore((directory / INDEX).read_bytes())
  return contents["optimizer"]


def folder_of(leaf: Mapping[str, Any]) -> str:
  """Returns the name of a stored array's folder in the checkpoint's folder.

  The location in the index of a checkpoint that was written to a bucket includes the
  bucket. The arrays are beside the index after the checkpoint is copied, too.
  """
  path = leaf.get("path") or leaf["kvstore"]["path"]
  return path.strip("/").split("/")[-1]


def check_whole(directory: epath.Path, leaves: Leaves) -> None:
  """Raises a ValueError if a compressed file of an array is cut off.

  The end of a file holds a checksum, and tensorstore ignores a missing checksum. Files
  in a bucket are not checked, because buckets have checksums.
  """
  for chunk, size in _compressed_files(directory, leaves):
    with chunk.open("rb") as file:
      file.seek(-4, os.SEEK_END)
      if int.from_bytes(file.read(), "little") != size % 2**32:
        raise ValueError(f"{chunk} is truncated or altered")


def _compressed_files(directory, leaves) -> Iterator[tuple[epath.Path, int]]:
  """Yields a local checkpoint's gzip files, each with the size after decompression."""
  if "://" in str(directory):
    return
  for leaf in leaves.values():
    metadata = isinstance(leaf, dict) and leaf["metadata"]
    if not metadata or (metadata.get("compressor") or {}).get("id") != "gzip":
      continue
    size = math.prod(metadata["chunks"]) * jnp.dtype(leaf["dtype"]).itemsize
    folder = directory / folder_of(leaf)
    files = folder.iterdir() if folder.is_dir() else ()
    for file in files:
      if not file.name.startswith("."):
        yield file, size
