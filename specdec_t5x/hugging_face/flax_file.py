"""Reads arrays of a file in Flax's format, msgpack, one at a time.

Names and axes are the names and axes of a safetensors file.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import msgpack
import numpy as np
from flax import serialization

_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
# The first byte of a map, by msgpack's specification.
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
# Flax writes an array of more than 1 GiB as a map of parts. The map's first key:
_CHUNKED = "__msgpack_chunked_array__"
_DEEPEST = 32  # The most nested maps.
_LARGEST = 2**31 - 1  # The most bytes of one value in msgpack's reader.


def their_name(path: str) -> str:
  """Returns the name in a safetensors file of a parameter in Flax's file.

  >>> their_name("encoder/block/0/layer/0/SelfAttention/q/kernel")
  'encoder.block.0.layer.0.SelfAttention.q.weight'
  """
  *parts, last = path.removeprefix("params/").split("/")
  last = "weight" if last in ("kernel", "embedding") else last
  return ".".join((*parts, last))


@dataclasses.dataclass(frozen=True)
class Leaf:
  """The location of an array in a file, and the array's header in safetensors."""

  start: int
  end: int
  shape: tuple[int, ...]
  dtype: str
  is_transposed: bool


def headers(path: pathlib.Path) -> dict[str, Leaf]:
  """Returns the locations of a file's arrays, by `their_name`.

  Raises:
    ValueError: if the file is cut off, or holds values other than arrays.
  """
  stat = path.stat()
  return _leaves(path, stat.st_size, stat.st_mtime_ns)


def read(path: pathlib.Path, name: str) -> np.ndarray:
  """Returns an array, in the axes of a safetensors file."""
  leaf = headers(path)[name]
  with path.open("rb") as file:
    array = _restored(file, leaf.start, leaf.end)
  return array.T if leaf.is_transposed else array


@functools.lru_cache(maxsize=64)
def _leaves(path: pathlib.Path, size: int, time: int) -> dict[str, Leaf]:
  """Returns the locations of all arrays, by `their_name`.

  One array is in memory at a time. A file with a new size or time is read again.
  """
  del time
  leaves = {}
  try:
    with path.open("rb") as streamed, path.open("rb") as file:
      unpacker = msgpack.Unpacker(streamed, max_buffer_size=_LARGEST)
      for parts, start in _walk(unpacker, file, ()):
        name = their_name("/".join(parts))
        if name in leaves:
          raise ValueError(f"the file has two arrays {name:.80}")
        array = _restored(file, start, unpacker.tell())
        if not parts or not isinstance(array, np.ndarray):
          raise ValueError(f"{'/'.join(parts):.80} is no array")
        is_transposed = parts[-1] == "kernel" and array.ndim == 2
        shape = array.shape[::-1] if is_transposed else array.shape
        dtype = _DTYPES.get(array.dtype.name, array.dtype.name)
        leaves[name] = Leaf(start, unpacker.tell(), shape, dtype, is_transposed)
      surplus = size - unpacker.tell()
  except (msgpack.UnpackException, LookupError, OverflowError, TypeError) as error:
    raise ValueError(f"{type(error).__name__}: {error}") from error
  if surplus:
    raise ValueError(f"the file has {surplus} surplus bytes at the end")
  return leaves


def _walk(
  unpacker: msgpack.Unpacker, file: BinaryIO, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
  """Yields the path and the first byte of each leaf; the leaf ends at `tell()`."""
  if len(path) > _DEEPEST:
    raise ValueError(f"{'/'.join(path):.80} is too deep")
  start = unpacker.tell()
  file.seek(start)
  if ord(file.read(1) or b"\0") not in _MAPS:
    unpacker.skip()
    yield path, start
    return
  is_chunked = False
  for _ in range(unpacker.read_map_header()):
    key = unpacker.unpack()
    if not isinstance(key, str):
      raise ValueError(f"the file has {key!r:.80} instead of a name")
    is_chunked |= key == _CHUNKED
    if is_chunked:
      unpacker.skip()
    else:
      yield from _walk(unpacker, file, (*path, key))
  if is_chunked:
    yield path, start


def _restored(file: BinaryIO, start: int, end: int) -> Any:
  """Returns the value between two bytes of a file."""
  file.seek(start)
  return serialization.msgpack_restore(file.read(end - start))
