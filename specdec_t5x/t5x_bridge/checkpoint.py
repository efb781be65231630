"""Checkpoints on disk: which format, which parameters, and restoring one."""

import re
from collections.abc import Mapping

import flax
import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from flax import serialization
from t5x import checkpoints
from t5x.train_state import InferenceState

from specdec_t5x.data.demo.location import how_to_make

Shapes = Mapping[str, tuple[int, ...]]
# The index file of T5X's format and the folder of Orbax's.
INDEX, STATE = "checkpoint", "state"


def is_t5x_format(path: str) -> bool:
  """Returns whether `path` is a checkpoint in T5X's format, else in Orbax's.

  Raises:
    ValueError: where it is neither.
  """
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
  read = _t5x_shapes if is_t5x_format(path) else _orbax_shapes
  try:
    return read(epath.Path(path))
  except Exception as error:  # msgpack, Orbax and tensorstore each raise their own.
    raise ValueError(
      f"The index of checkpoint {path} can't be read ({type(error).__name__}: "
      f"{error}). The checkpoint is damaged or incomplete; copy it again."
    ) from error


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
  if any(
    not jnp.issubdtype(p.dtype, jnp.floating) for p in jax.tree.leaves(state.params)
  ):
    restore_dtype = None
  try:
    if is_t5x_format(path):
      dtype = jnp.dtype(restore_dtype) if restore_dtype else None
      reader = checkpoints.Checkpointer(state, partitioner, "", restore_dtype=dtype)
    else:
      reader = checkpoints.OrbaxCheckpointManagerInterface(
        directory=str(epath.Path(path).parent),
        train_state=state,
        partitioner=partitioner,
        restore_dtype=restore_dtype,
      )
    return reader.restore(path=path)
  except Exception as error:  # Readers raise many types; none says which model it was.
    raise ValueError(
      f"Checkpoint {path} could not be restored ({type(error).__name__}: {error}). If "
      "its files are damaged, copy it again from where it was written."
    ) from error


def flat_shapes(tree) -> Shapes:
  """Returns the shapes of nested parameters by their path, as decoder/.../kernel."""
  flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")
  return {name: tuple(leaf.shape) for name, leaf in flat.items()}


def _t5x_shapes(directory: epath.Path) -> Shapes:
  contents = serialization.msgpack_restore((directory / INDEX).read_bytes())
  is_stored = lambda _, leaf: isinstance(leaf, dict) and "driver" in leaf
  flat = flax.traverse_util.flatten_dict(
    contents["optimizer"]["target"], sep="/", is_leaf=is_stored
  )
  return {
    name: tuple(leaf["metadata"]["shape"] if isinstance(leaf, dict) else leaf.shape)
    for name, leaf in flat.items()
  }


def _orbax_shapes(directory: epath.Path) -> Shapes:
  with ocp.PyTreeCheckpointer() as checkpointer:
    metadata = checkpointer.metadata((directory / STATE).resolve())
  return flat_shapes(metadata.item_metadata.tree["target"])
