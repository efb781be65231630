"""T5X's own checkpoint format: a msgpack index and one zarr array per parameter.

The index, a file `checkpoint`, is {'version': 3, 'optimizer': {'target': ...,
'state': ...}}. A leaf is either an array (inline) or a tensorstore spec with a kvstore
path relative to the checkpoint's directory.

Arrays pass through host memory in groups, with the largest arrays first. The groups
shrink while the restored parameters grow, so the peak is little more than the size of
the parameters.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore as ts
from etils import epath
from flax import serialization, traverse_util
from jax.sharding import Sharding

INDEX_FILE = "checkpoint"
VERSION = 3
# Maximal bytes of a file, so that reading a shard does not read the whole array.
_CHUNK_BYTES = 64 * 1024 * 1024
_CONCURRENT_READS = 8
# Parameters are float32 or narrower.
_ITEM_BYTES = 4
_ALIGNMENT = 64
# A group is this part of all bytes, because reading holds two or three copies of the
# group (compressed, decompressed, cast). `_LEAST` bytes keep a disk and several cores
# busy.
_PART = 1 / 64
_LEAST = 32 * 1024 * 1024


def groups(shapes: Mapping[str, tuple[int, ...]]) -> list[list[str]]:
  """Groups the names of arrays by size, with the largest arrays first.

  A group has at least one array, and further arrays up to the limit of bytes.

  Args:
    shapes: shapes of arrays by name; an array counts as float32.
  """
  sizes = {name: _ITEM_BYTES * math.prod(shape) for name, shape in shapes.items()}
  limit = max(_LEAST, int(_PART * sum(sizes.values())))
  group_size = math.inf
  grouped = []
  for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
    if group_size + sizes[name] > limit:
      grouped.append([])
      group_size = 0
    grouped[-1].append(name)
    group_size += sizes[name]
  return grouped


@dataclasses.dataclass(frozen=True)
class StoredArray:
  """An array in an index."""

  name: str  # The path in the state, as in target/decoder/logits_dense/kernel.
  shape: tuple[int, ...]  # Of the whole array.
  directory: epath.Path  # Of the checkpoint.
  folder: str | None = None  # Of the zarr array; None if `value` is inline.
  value: np.ndarray | None = None
  dtype: str | None = None  # Of a zarr array; None if the index has no dtype.

  def read(self, sharding: Sharding, dtype=None) -> jax.Array:
    """Reads the array shard by shard.

    Args:
      sharding: sharding of the result; each device gets only the device's shard.
      dtype: dtype of the result; None keeps the stored dtype.

    Raises:
      ValueError: if the file is missing, damaged or of another array.
    """
    try:
      if self.folder is None:
        value = self.value if dtype is None else self.value.astype(jnp.dtype(dtype))
        return jax.make_array_from_callback(self.shape, sharding, value.__getitem__)
      return _place(self._open(dtype), self.shape, sharding)
    # tensorstore reports an unreadable file by several types (ValueError, OSError, and
    # jaxlib's wrappers of ValueError and OSError).
    except Exception as error:
      raise ValueError(
        f"Checkpoint {self.directory}: parameter {self.name} could not be read. "
        f"Expected an array of shape {self.shape} in {self.folder or INDEX_FILE}; got "
        f"{type(error).__name__}: {first_line(error)}. The file is missing, truncated, "
        "altered or not readable. Copy the checkpoint again."
      ) from error

  def _open(self, dtype):
    spec = {
      "driver": "zarr",
      "kvstore": kvstore(self.directory / self.folder),
      # A missing file must not read as zeros.
      "fill_missing_data_reads": False,
    }
    store = ts.open(spec, read=True).result()
    if tuple(store.shape) != self.shape:
      raise ValueError(f"the array on disk has shape {tuple(store.shape)}")
    if self.dtype is not None:
      # tensorstore trusts the metadata on disk, and would return wrong numbers.
      metadata = store.spec().to_json()["metadata"]
      layout = (metadata["dtype"], metadata["order"])
      expected = self.dtype
      if expected != "bfloat16":
        expected = np.dtype(expected).newbyteorder("<").str
      if layout != (expected, "C"):
        raise ValueError(
          f"the array on disk is {layout[0]} in order {layout[1]}, not {expected} C"
        )
    return store if dtype is None else ts.cast(store, ts.dtype(jnp.dtype(dtype).name))


def kvstore(path: epath.Path) -> dict[str, Any]:
  """Returns tensorstore's address of a local or gs:// folder."""
  if str(path).startswith("gs://"):
    bucket, _, folder = str(path).removeprefix("gs://").partition("/")
    return {"driver": "gcs", "bucket": bucket, "path": f"{folder}/"}
  return {"driver": "file", "path": f"{path.absolute()}/"}


def read_index(directory: epath.Path) -> dict[str, StoredArray]:
  """Returns the entries of a checkpoint's index, by path (target/..., state/...).

  Raises:
    ValueError: if the index is damaged, or of a newer format.
  """
  index = directory / INDEX_FILE
  try:
    contents = serialization.msgpack_restore(index.read_bytes())
  # msgpack has a dozen exception types for damaged input, including builtins.
  except Exception as error:
    raise ValueError(
      f"Checkpoint {directory}: the index {index} could not be read. Expected a "
      f"msgpack file written by T5X; got {type(error).__name__}: {first_line(error)}. "
      "Copy the checkpoint again."
    ) from error
  keys = sorted(map(str, contents)) if isinstance(contents, Mapping) else contents
  if "optimizer" not in keys or not isinstance(contents["optimizer"], Mapping):
    raise ValueError(
      f"Checkpoint {directory}: expected an index with 'version' and 'optimizer', got "
      f"{str(keys)[:200]}. The folder is not a T5X checkpoint, or the checkpoint is "
      "damaged. Copy the checkpoint again."
    )
  if contents.get("version", VERSION) > VERSION:
    raise ValueError(
      f"Checkpoint {directory}: expected format version <= {VERSION}, got "
      f"{contents['version']}. Update the package t5x_runtime."
    )

  def is_spec(_, leaf):
    return isinstance(leaf, Mapping) and "driver" in leaf

  flat = traverse_util.flatten_dict(contents["optimizer"], sep="/", is_leaf=is_spec)
  entries = {}
  for name, leaf in flat.items():
    if not isinstance(leaf, Mapping):
      value = np.asarray(leaf)
      entries[name] = StoredArray(name, value.shape, directory, value=value)
      continue
    # In a checkpoint from a bucket, kvstore names the bucket, and `path` beside kvstore
    # names the folder. In both layouts, the folder is in the checkpoint's directory,
    # also after a copy of the directory.
    folder = (leaf.get("path") or leaf["kvstore"]["path"]).strip("/").split("/")[-1]
    shape = tuple(leaf["metadata"]["shape"])
    dtype = leaf.get("dtype")
    entries[name] = StoredArray(name, shape, directory, folder, dtype=dtype)
  return entries


def read_arrays(
  entries: Mapping[str, StoredArray],
  shardings: Mapping[str, Sharding],
  dtypes: Mapping[str, Any],
) -> dict[str, Any]:
  """Reads several entries at once, with the given shardings and dtypes.

  Host memory holds little besides the results.

  Args:
    entries: the entries to read, by name.
    shardings: shardings by name.
    dtypes: dtypes by name; arrays without a dtype keep the stored dtype.

  Returns:
    The arrays by name.

  Raises:
    ValueError: if an array can't be read; the message names the first such array.
  """

  def read(name):
    array = entries[name].read(shardings[name], dtypes.get(name))
    return jax.block_until_ready(array)

  values = {}
  with futures.ThreadPoolExecutor(_CONCURRENT_READS) as pool:
    for group in groups({name: x.shape for name, x in entries.items()}):
      values |= zip(group, pool.map(read, group), strict=True)
  return values


def write_checkpoint(
  directory: epath.Path, state: Mapping[str, Any], is_first: bool
) -> None:
  """Writes a checkpoint; every process writes the process's shards.

  All writes have ended when this function returns or raises an error.

  Args:
    directory: directory of the checkpoint, which must not exist or be empty.
    state: arrays by path; target/... become zarr arrays, state/... go into the index.
    is_first: whether this process writes the index and arrays without shards.
  """
  index = {}
  stores = {}
  for name, array in state.items():
    if name.startswith("state/"):
      index[name] = np.asarray(array)
      continue
    folder = name.replace("/", ".")
    metadata = {
      "chunks": _chunks(array),
      "compressor": {"id": "gzip", "level": 1},
      "shape": list(array.shape),
    }
    dtype = jnp.dtype(array.dtype).name
    index[name] = {
      "driver": "zarr",
      "dtype": dtype,
      "kvstore": {"driver": "file", "path": f"{folder}/"},
      "metadata": metadata,
    }
    stores[name] = ts.open(
      {**index[name], "kvstore": kvstore(directory / folder)}, create=True, open=True
    )
  stores = dict(zip(stores, _ended(stores.values()), strict=True))
  for names in groups({name: state[name].shape for name in stores}):
    writes = []
    try:
      for name in names:
        array = state[name]
        if isinstance(array, jax.Array):
          # The holder of a shard's first replica writes the shard, so each shard is
          # written once.
          writes += [
            stores[name][shard.index].write(np.asarray(shard.data))
            for shard in array.addressable_shards
            if shard.replica_id == 0
          ]
        elif is_first:
          writes.append(stores[name].write(array))
    finally:
      _ended(writes)
  if is_first:
    nested = traverse_util.unflatten_dict(index, sep="/")
    contents = {"version": VERSION, "optimizer": nested}
    (directory / INDEX_FILE).write_bytes(serialization.msgpack_serialize(contents))


def _ended(pending: Iterable[ts.Future]) -> list:
  """Waits for all futures, and returns the results or raises the first error."""
  pending = list(pending)
  for error in [future.exception() for future in pending]:
    if error is not None:
      raise error
  return [future.result() for future in pending]


def _chunks(array) -> list[int]:
  """Returns the shape of chunks: a shard, halved until chunks are small enough.

  No two processes share a chunk.
  """
  if isinstance(array, jax.Array):
    chunks = list(array.sharding.shard_shape(array.shape))
  else:
    chunks = list(array.shape)
  itemsize = jnp.dtype(array.dtype).itemsize
  while math.prod(chunks) * itemsize > _CHUNK_BYTES:
    even = [i for i, size in enumerate(chunks) if size % 2 == 0]
    if not even:
      break
    chunks[max(even, key=chunks.__getitem__)] //= 2
  return chunks


def _place(store, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
  """Reads each shard once, and copies the shard to all its devices in this process."""
  devices: dict[tuple, list[jax.Device]] = {}
  for device, index in sharding.addressable_devices_indices_map(shape).items():
    devices.setdefault(tuple((i.start, i.stop) for i in index), []).append(device)
  # All reads start together, so that shards in the same file are decompressed once.
  pending = []
  for index, holders in devices.items():
    shard = store[tuple(slice(start, stop) for start, stop in index)]
    dtype = shard.dtype.numpy_dtype
    size = shard.size * dtype.itemsize
    # With JAX's alignment on a CPU, JAX uses the array without a copy.
    buffer = np.empty(size + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    value = buffer[start : start + size].view(dtype).reshape(shard.shape)
    pending.append((value, ts.array(value).write(shard), holders))
  shards = []
  while pending:
    # `pop` frees each host array as soon as the devices have a copy.
    value, is_read, holders = pending.pop()
    is_read.result()
    shards += jax.block_until_ready([jax.device_put(value, d) for d in holders])
  return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def first_line(error: Exception) -> str:
  """Returns the first line of an error, without tensorstore's specification."""
  return str(error).split(" [tensorstore_spec")[0].strip().split("\n")[0][:300]
