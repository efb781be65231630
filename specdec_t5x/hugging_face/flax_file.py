"""Arrays of a file in Flax's format, msgpack, read one at a time.

The interface is that of `safetensors.safe_open`, and the names and axes are those of a
safetensors file. Source: flax, serialization.py, and msgpack's specification.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import ml_dtypes  # noqa: F401, makes 'bfloat16' a type of NumPy's.
import numpy as np

from specdec_t5x.core.checks import is_whole

_DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "float64": "F64"}
# Bytes of the length of strings, extensions, maps and lists, by the first byte.
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_MAPS, _LISTS = {0xDE: 2, 0xDF: 4}, {0xDC: 2, 0xDD: 4}
# Lengths of extensions that have no such bytes.
_SHORT_EXTENSIONS = {0xD4 + i: 2**i for i in range(5)}
_ARRAY = 1  # Flax's code of an extension that is an array.
# An array of more than 1 GiB is a map of its parts, which has this key first.
_CHUNKED = "__msgpack_chunked_array__"
_DEEPEST = 32  # Maps within maps.
_LONGEST = 1024  # Bytes of a name, and of what stands before an array's numbers.


def their_name(path: str) -> str:
  """Returns a safetensors file's name of one of Flax's parameters.

  >>> their_name("encoder/block/0/layer/0/SelfAttention/q/kernel")
  'encoder.block.0.layer.0.SelfAttention.q.weight'
  """
  *parts, last = path.removeprefix("params/").split("/")
  last = "weight" if last in ("kernel", "embedding") else last
  return ".".join((*parts, last))


@dataclasses.dataclass(frozen=True)
class _Leaf:
  """Where an array is in a file.

  Attributes:
    shape: as it is stored.
    dtype: its name.
    places: where the bytes of its parts begin and end; most arrays are one part.
    is_transposed: whether a safetensors file has the transposed one.
  """

  shape: tuple[int, ...]
  dtype: str
  places: tuple[tuple[int, int], ...]
  is_transposed: bool = False


class FlaxFile:
  """An open file; a context manager, as `safetensors.safe_open` is.

  Args:
    path: of the file.

  Raises:
    ValueError: where the file is cut off or holds something else than arrays.
  """

  def __init__(self, path: pathlib.Path):
    known = path.stat()
    self._leaves = _leaves(path, known.st_size, known.st_mtime_ns)
    self._file = path.open("rb")

  def __enter__(self) -> "FlaxFile":
    return self

  def __exit__(self, *error: Any) -> None:
    self._file.close()

  def keys(self) -> list[str]:
    """Returns the names of all arrays."""
    return list(self._leaves)

  def get_tensor(self, name: str) -> np.ndarray:
    """Returns an array, in the axes of a safetensors file."""
    leaf = self._leaves[name]
    array = np.empty(leaf.shape, leaf.dtype)
    to = array.reshape(-1).view(np.uint8)
    for start, end in leaf.places:
      self._file.seek(start)
      self._file.readinto(to[: end - start])
      to = to[end - start :]
    return array.T if leaf.is_transposed else array

  def get_slice(self, name: str) -> "_Slice":
    """Returns the shape and type of an array; indexing reads rows."""
    return _Slice(self, name, self._leaves[name])


class _Slice:
  """An array; the first index reads all of its rows."""

  def __init__(self, file: FlaxFile, name: str, leaf: _Leaf):
    self._file, self._name, self._leaf = file, name, leaf
    self._array = None

  def get_shape(self) -> tuple[int, ...]:
    shape = self._leaf.shape
    return shape[::-1] if self._leaf.is_transposed else shape

  def get_dtype(self) -> str:
    return _DTYPES.get(self._leaf.dtype, self._leaf.dtype)

  def __getitem__(self, rows: slice) -> np.ndarray:
    if self._array is None:
      self._array = self._file.get_tensor(self._name)
    return self._array[rows]


@functools.lru_cache(maxsize=64)
def _leaves(path: pathlib.Path, size: int, time: int) -> dict[str, _Leaf]:
  """Returns all arrays by `their_name`s; their numbers are not read.

  Args:
    path: of the file.
    size: of the file.
    time: of its last change: another one is read anew.

  Raises:
    ValueError: where it is cut off, or holds something else than arrays.
  """
  del time
  found = {}
  try:
    with path.open("rb") as file:
      for parts, leaf in _walk(_Cursor(file, size), ()):
        name = their_name("/".join(parts))
        if name in found:
          raise ValueError(f"it has two arrays {name:.80}")
        is_transposed = parts[-1] == "kernel" and len(leaf.shape) == 2
        found[name] = dataclasses.replace(leaf, is_transposed=is_transposed)
      surplus = size - file.tell()
  except (TypeError, LookupError) as error:
    raise ValueError(f"{type(error).__name__}: {error}") from error
  if surplus:
    raise ValueError(f"there are {surplus} bytes after its end")
  return found


class _Cursor:
  """A place in a file, and msgpack's values from there on."""

  def __init__(self, file: BinaryIO, size: int):
    self._file, self._size = file, size

  @property
  def place(self) -> int:
    return self._file.tell()

  def read(self, count: int) -> bytes:
    """Returns the next bytes."""
    self._check(count)
    return self._file.read(count)

  def go(self, place: int) -> None:
    """Goes to a place."""
    self._check(place - self.place)
    self._file.seek(place)

  def number(self, count: int) -> int:
    """Returns a number of so many bytes."""
    return int.from_bytes(self.read(count), "big")

  def _check(self, count: int) -> None:
    if count > self._size - self.place:
      raise ValueError("it is cut off")


def _walk(
  at: _Cursor, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], _Leaf]]:
  """Yields the path and the place of each array of a value."""
  if len(path) > _DEEPEST:
    raise ValueError(f"{'/'.join(path):.80} is too deep")
  start, first = at.place, at.number(1)
  count = _count(at, first, _MAPS, 0x80)
  if count is None:
    yield path, _array(at, first, "/".join(path))
    return
  for _ in range(count):
    key = _string(at, at.number(1))
    if key == _CHUNKED:
      at.go(start)
      yield path, _in_parts(at, path)
      return
    yield from _walk(at, (*path, key))


def _count(at: _Cursor, first: int, lengths: dict[int, int], small: int) -> int | None:
  """Returns the number of entries of a map or list; None for other values."""
  if first in lengths:
    return at.number(lengths[first])
  return first & 0x0F if first & 0xF0 == small else None


def _string(at: _Cursor, first: int) -> str:
  """Returns a string after its first byte."""
  length = at.number(_STRINGS[first]) if first in _STRINGS else first & 0x1F
  is_string = first in _STRINGS or 0xA0 <= first < 0xC0
  if not is_string or length > _LONGEST:
    raise ValueError("it has something else in the place of a name")
  return at.read(length).decode("utf-8")


def _array(at: _Cursor, first: int, name: str) -> _Leaf:
  """Returns the place of an array after its first byte, and goes to its end."""
  if first in _EXTENSIONS:
    length = at.number(_EXTENSIONS[first])
  else:
    length = _SHORT_EXTENSIONS.get(first)
  if length is None or at.number(1) != _ARRAY:
    raise ValueError(f"{name:.80} is no array")
  end = at.place + length
  parts = _count(at, at.number(1), _LISTS, 0x90)
  shape = _value(at)
  dtype = _value(at)
  if parts != 3 or not all(is_whole(size, 0) for size in shape):
    raise ValueError(f"{name:.80} has no shape, {shape!r:.80}")
  at.go(end)
  if dtype not in _DTYPES:
    return _Leaf(tuple(shape), str(dtype), ())
  # The numbers end the extension.
  size = math.prod(shape) * np.dtype(dtype).itemsize
  if not 0 <= length - size <= _LONGEST:
    raise ValueError(f"{name:.80} has {length} bytes, and the shape {shape!r:.80}")
  return _Leaf(tuple(shape), dtype, ((end - size, end),))


def _in_parts(at: _Cursor, path: tuple[str, ...]) -> _Leaf:
  """Returns the places of an array in parts, and goes to its end."""
  sizes, chunks = None, []
  for _ in range(_count(at, at.number(1), _MAPS, 0x80)):
    key = _string(at, at.number(1))
    if key == "chunks":
      chunks = [leaf for _, leaf in _walk(at, (*path, key))]
    elif key == "shape":
      sizes = _value(at)
    else:
      _value(at)
  shape = tuple(sizes[str(i)] for i in range(len(sizes)))
  count = sum(math.prod(leaf.shape) for leaf in chunks)
  kinds = {leaf.dtype for leaf in chunks}
  if len(kinds) != 1 or count != math.prod(shape) or any(size < 0 for size in shape):
    raise ValueError(f"{'/'.join(path):.80} has other parts than its shape {shape}")
  return _Leaf(shape, *kinds, tuple(place for leaf in chunks for place in leaf.places))


def _value(at: _Cursor, depth: int = 0) -> Any:
  """Returns a value of numbers, strings, lists and maps."""
  if depth > _DEEPEST:
    raise ValueError("it is too deep")
  first = at.number(1)
  if first < 0x80:
    return first
  if 0xCC <= first <= 0xCF:
    return at.number(2 ** (first - 0xCC))
  if first in (0xC2, 0xC3):
    return first == 0xC3
  if (count := _count(at, first, _LISTS, 0x90)) is not None:
    return [_value(at, depth + 1) for _ in range(count)]
  if (count := _count(at, first, _MAPS, 0x80)) is not None:
    return {_string(at, at.number(1)): _value(at, depth + 1) for _ in range(count)}
  return _string(at, first)
