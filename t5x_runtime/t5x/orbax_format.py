"""Checkpoints in Orbax's format: <directory>/checkpoint_<step>/state/..."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath, epy
from flax import traverse_util

from t5x.checkpoint_arrays import first_line, groups

with epy.lazy_imports():
  import orbax.checkpoint as ocp

STATE = "state"
_METADATA = "_METADATA"


def is_orbax_format(path: epath.PathLike) -> bool:
  """Returns whether a directory is a complete Orbax checkpoint."""
  return (epath.Path(path) / STATE / _METADATA).is_file()


def save(directory: epath.Path, step: int, state: Mapping[str, Any]) -> None:
  """Writes checkpoint_<step> with the item 'state'."""
  directory.mkdir(parents=True, exist_ok=True)
  options = ocp.CheckpointManagerOptions(
    step_prefix="checkpoint", enable_async_checkpointing=False
  )
  handlers = {STATE: ocp.PyTreeCheckpointHandler()}
  with ocp.CheckpointManager(
    directory.absolute(), options=options, item_handlers=handlers
  ) as manager:
    args = ocp.args.Composite(**{STATE: ocp.args.PyTreeSave(state)})
    manager.save(step, args=args, force=True)


def read_index(directory: epath.Path) -> dict[str, Any]:
  """Returns array metadata with the attribute `shape`, by path."""
  try:
    with ocp.PyTreeCheckpointer() as checkpointer:
      metadata = checkpointer.metadata((directory / STATE).absolute())
    return traverse_util.flatten_dict(dict(metadata.item_metadata.tree), sep="/")
  # Orbax, tensorstore and json raise different types for damaged metadata.
  except Exception as error:
    index = "the index (_METADATA, manifest.ocdbt and d in state)"
    raise _damaged(directory, index, error) from error


def read_arrays(
  directory: epath.Path,
  entries: Mapping[str, Any],
  shardings: Mapping[str, jax.sharding.Sharding],
  dtypes: Mapping[str, Any],
) -> dict[str, Any]:
  """Reads the arrays in `entries`, with the given shardings and dtypes.

  Orbax would read all arrays through host memory at once, so this function reads groups
  of arrays.

  Args:
    directory: directory of the checkpoint.
    entries: entries of the index to read, by path.
    shardings: shardings by path.
    dtypes: dtypes by path; arrays without a dtype keep the stored dtype.

  Returns:
    The arrays by path.

  Raises:
    ValueError: if an array can't be read; the message names the array.
  """
  args = {
    name: ocp.ArrayRestoreArgs(
      sharding=shardings[name],
      dtype=None if dtypes.get(name) is None else jnp.dtype(dtypes[name]),
    )
    for name in entries
  }
  values = {}
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    for group in groups({name: x.shape for name, x in entries.items()}):
      group_args = {name: args[name] for name in group}
      try:
        values |= _read_group(checkpointer, directory, group_args)
      # Orbax, tensorstore and json raise different types for damaged arrays.
      except Exception as error:
        for name, arg in group_args.items():
          try:
            _read_group(checkpointer, directory, {name: arg})
          except Exception as array_error:
            damaged = f"parameter {name}"
            raise _damaged(directory, damaged, array_error) from array_error
        together = f"the parameters {sorted(group)} together"
        raise _damaged(directory, together, error) from error
  return values


def _read_group(checkpointer, directory, args) -> dict[str, Any]:
  restore_args = traverse_util.unflatten_dict(args, sep="/")
  request = ocp.args.PyTreeRestore(
    item=jax.tree.map(lambda _: 0, restore_args),
    restore_args=restore_args,
    partial_restore=True,
  )
  state = checkpointer.restore((directory / STATE).absolute(), args=request)
  return jax.block_until_ready(traverse_util.flatten_dict(state, sep="/"))


def _damaged(directory: epath.Path, what: str, error: Exception) -> ValueError:
  # Orbax's errors wrap tensorstore's error, which names the file.
  while error.__cause__ is not None:
    error = error.__cause__
  return ValueError(
    f"Checkpoint {directory} (Orbax format): {what} could not be read; got "
    f"{type(error).__name__}: {first_line(error)}. Files are missing or damaged. Copy "
    "the checkpoint again."
  )
