"""Checkpoints on disk: which format, which parameters, and restoring one."""

import dataclasses
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging
from etils import epath
from flax import serialization
from t5x import checkpoints, partitioning
from t5x.train_state import InferenceState

from specdec_t5x.data.hints import how_to_make
from specdec_t5x.hugging_face.folder import Folder, is_folder
from specdec_t5x.network.functional import (
  Network,
  Settings,
  initial_variables,
  network_config,
)

Shapes = Mapping[str, tuple[int, ...]]
# The index file of T5X's format and the folder of Orbax's.
INDEX, STATE = "checkpoint", "state"


def is_t5x_format(path: str) -> bool:
  """Returns whether `path` is a checkpoint in T5X's format, else in Orbax's.

  Raises:
    ValueError: where it is neither.
  """
  if not isinstance(path, str | os.PathLike) or not str(path):
    raise ValueError(
      f"Expected the path of a checkpoint's folder, got {path!r}. Give one, in quotes."
    )
  directory = epath.Path(path)
  if not directory.is_dir():
    raise ValueError(
      f"{path} is not a directory. Expected a T5X checkpoint (a folder with an index "
      f"file {INDEX!r}) or an Orbax one (with a folder {STATE!r}).{how_to_make(path)}"
    )
  if (directory / INDEX).is_file():
    return True
  if not (directory / STATE).is_dir():
    raise ValueError(
      f"{path} holds no checkpoint: neither a file {INDEX!r} (T5X) nor a folder "
      f"{STATE!r} (Orbax). Give the folder of one step, as .../checkpoint_1000."
    )
  if not re.fullmatch(r"checkpoint_\d+", directory.name):
    raise ValueError(
      f"{path} is an Orbax checkpoint, whose folder must be called checkpoint_<step> "
      f"as T5X writes it, not {directory.name!r}. Rename it."
    )
  return False


def parameter_shapes(path: str) -> Shapes:
  """Returns the shape of each parameter of a checkpoint, read from its index alone.

  Raises:
    ValueError: where there is no checkpoint, or its index can't be read.
  """
  if is_folder(path):
    return Folder.open(path).shapes
  read = _t5x_shapes if is_t5x_format(path) else _orbax_shapes
  try:
    return read(epath.Path(path))
  except Exception as error:  # msgpack, Orbax and tensorstore each raise their own.
    raise ValueError(
      f"The index of checkpoint {path} can't be read ({type(error).__name__}: "
      f"{error}). The checkpoint is damaged or incomplete; copy it again."
    ) from error


def settings(path: str, dtype: str = "float32") -> Settings:
  """Returns the configuration of a checkpoint's network.

  Of a Hugging Face folder what its config.json says; else read off the parameters'
  shapes, with T5 1.1's gated GELU where the feed-forward layer is gated and T5 1.0's
  ReLU where not.

  Args:
    path: of the checkpoint.
    dtype: of the activations.

  Raises:
    ValueError: as `parameter_shapes`; or where no network of this project is like it.
  """
  if is_folder(path):
    return dataclasses.replace(Folder.open(path).config, dtype=dtype)
  return network_config(parameter_shapes(path), dtype)


def restore(
  path: str, state: InferenceState, partitioner, restore_dtype: str | None
) -> InferenceState:
  """Returns `state` with the parameters of a checkpoint, in the partitioner's layout.

  Args:
    path: of the checkpoint.
    state: shapes of the parameters, and their logical axes.
    partitioner: says where each parameter lives.
    restore_dtype: 'float32', 'bfloat16' or 'float16'; None keeps the checkpoint's, and
      so does a table of n-grams, part of which are token ids.

  Raises:
    ValueError: where it can't be restored.
  """
  if is_folder(path):
    return _from_folder(path, state, partitioner, restore_dtype)
  if any(
    not jnp.issubdtype(p.dtype, jnp.floating) for p in jax.tree.leaves(state.params)
  ):
    restore_dtype = None
  try:
    if is_t5x_format(path):
      _check_whole(epath.Path(path))
      dtype = jnp.dtype(restore_dtype) if restore_dtype else None
      reader = checkpoints.Checkpointer(state, partitioner, "", restore_dtype=dtype)
    else:
      reader = checkpoints.OrbaxCheckpointManagerInterface(
        directory=str(epath.Path(path).parent),
        train_state=state,
        partitioner=partitioner,
        restore_dtype=restore_dtype,
      )
    restored = reader.restore(path=path)
  except Exception as error:  # Readers raise many types; none says which model it was.
    raise ValueError(
      f"Checkpoint {path} could not be restored ({type(error).__name__}: {error}). If "
      "its files are damaged, copy it again from where it was written."
    ) from error
  check_finite(path, restored.params)
  return restored


def _from_folder(path, state, partitioner, restore_dtype) -> InferenceState:
  """As `restore`, of a Hugging Face folder: an array at a time, straight to devices."""
  logging.info("Restoring the Hugging Face folder %s as T5X's parameters.", path)
  folder = Folder.open(path)
  axes = flax.core.unfreeze(partitioner.get_mesh_axes(state).params)
  axes = flax.traverse_util.flatten_dict(axes, sep="/")
  flat, shapes = {}, flat_shapes(state.params)
  # The largest first, whose copies are made when there is least beside them.
  for name in sorted(shapes, key=lambda name: -math.prod(shapes[name])):
    with np.errstate(over="ignore"):  # Infinity, which `check_finite` says.
      array = np.asarray(folder.read(name), restore_dtype and jnp.dtype(restore_dtype))
    layout = jax.sharding.NamedSharding(partitioner.mesh, axes[name])
    some = lambda index, array=array: array[index]
    flat[name] = jax.make_array_from_callback(shapes[name], layout, some)
  params = flax.core.freeze(flax.traverse_util.unflatten_dict(flat, sep="/"))
  check_finite(path, params)
  return state.replace_params(params).replace_step(jnp.zeros((), jnp.int32))


def load(path: str, network: Network, dtype: str = "float32") -> Any:
  """Returns the parameters of a network's checkpoint, whole on one device.

  Raises:
    ValueError: as `restore`.
  """
  partitioner = partitioning.PjitPartitioner(num_partitions=1)
  return restore(path, abstract_state(network), partitioner, dtype).params


def abstract_state(network: Network) -> InferenceState:
  """Returns the shapes of a network's parameters, and their logical axes."""
  make = lambda key: InferenceState.create(
    flax.core.freeze(initial_variables(network, key))
  )
  return jax.eval_shape(make, jax.random.key(0))


def check_finite(path: str, params) -> None:
  """Raises a ValueError where a parameter that `path` gave is NaN or infinite.

  One reduction a parameter, where it lies: no copy is made.
  """
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  is_float = lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating)
  finite = {name: _all_finite(leaf) for name, leaf in flat.items() if is_float(leaf)}
  bad = [name for name in sorted(finite) if not finite[name]]
  if bad:
    raise ValueError(
      f"Checkpoint {path}: parameter {bad[0]} is not finite as {flat[bad[0]].dtype}: "
      f"it holds NaN or infinity, as do {len(bad)} of {len(flat)} parameters. Take an "
      "earlier checkpoint of the training, or copy it again; of float16 it may be the "
      "range: set PARAM_DTYPE = 'bfloat16' or 'float32'."
    )


def _all_finite(x: jax.Array) -> bool:
  # Shard by shard: over a mesh each of these would be a program that communicates.
  return all(bool(_is_finite(shard.data)) for shard in x.addressable_shards)


@jax.jit
def _is_finite(x):
  return jnp.isfinite(x).all()


def flat_shapes(tree) -> Shapes:
  """Returns the shapes of nested parameters by their path, as decoder/.../kernel."""
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")
  return {name: tuple(leaf.shape) for name, leaf in flat.items()}


def _check_whole(directory: epath.Path) -> None:
  """Raises a ValueError where a compressed file of an array lacks its end.

  The end holds the checksum, which tensorstore then does without. A bucket has its own.
  """
  for chunk, size in _compressed_files(directory):
    with chunk.open("rb") as file:
      file.seek(-4, os.SEEK_END)
      if int.from_bytes(file.read(), "little") != size % 2**32:
        raise ValueError(f"{chunk} is cut off or altered")


def _compressed_files(directory: epath.Path) -> Iterator[tuple[epath.Path, int]]:
  """Yields a local checkpoint's files in gzip, and the bytes that each expands to."""
  if "://" in str(directory):
    return
  for leaf in _t5x_leaves(directory).values():
    stored = isinstance(leaf, dict) and leaf["metadata"]
    if not stored or (stored.get("compressor") or {}).get("id") != "gzip":
      continue
    size = math.prod(stored["chunks"]) * jnp.dtype(leaf["dtype"]).itemsize
    path = leaf.get("path") or leaf["kvstore"]["path"]
    folder = directory / path.strip("/").split("/")[-1]
    files = folder.iterdir() if folder.is_dir() else ()
    yield from ((file, size) for file in files if not file.name.startswith("."))


def _t5x_leaves(directory: epath.Path) -> Mapping[str, Any]:
  contents = serialization.msgpack_restore((directory / INDEX).read_bytes())
  is_stored = lambda _, leaf: isinstance(leaf, dict) and "driver" in leaf
  return flax.traverse_util.flatten_dict(
    contents["optimizer"]["target"], sep="/", is_leaf=is_stored
  )


def _t5x_shapes(directory: epath.Path) -> Shapes:
  return {
    name: tuple(leaf["metadata"]["shape"] if isinstance(leaf, dict) else leaf.shape)
    for name, leaf in _t5x_leaves(directory).items()
  }


def _orbax_shapes(directory: epath.Path) -> Shapes:
  with ocp.PyTreeCheckpointer() as checkpointer:
    metadata = checkpointer.metadata((directory / STATE).resolve())
  return flat_shapes(metadata.item_metadata.tree["target"])
