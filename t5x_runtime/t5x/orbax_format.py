"""Checkpoints in Orbax's format: <directory>/checkpoint_<step>/state/..."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from flax import traverse_util

STATE = "state"
_METADATA = "_METADATA"


def is_orbax_format(path: epath.PathLike) -> bool:
  """Whether a directory is a complete Orbax checkpoint."""
  return (epath.Path(path) / STATE / _METADATA).is_file()


def save(
  directory: epath.Path, step: int, state: Mapping[str, Any], keep: int | None
) -> None:
  """Writes checkpoint_<step> with the item 'state', and drops all but `keep`."""
  directory.mkdir(parents=True, exist_ok=True)
  options = ocp.CheckpointManagerOptions(
    step_prefix="checkpoint",
    max_to_keep=keep,
    enable_async_checkpointing=False,
  )
  handlers = {STATE: ocp.PyTreeCheckpointHandler()}
  with ocp.CheckpointManager(
    directory.absolute(), options=options, item_handlers=handlers
  ) as manager:
    args = ocp.args.Composite(**{STATE: ocp.args.PyTreeSave(state)})
    manager.save(step, args=args, force=True)


def read_shapes(directory: epath.Path) -> dict[str, tuple[int, ...]]:
  """Shapes of the arrays by path, from the metadata alone."""
  try:
    with ocp.PyTreeCheckpointer() as checkpointer:
      metadata = checkpointer.metadata((directory / STATE).absolute())
    tree = traverse_util.flatten_dict(dict(metadata.item_metadata.tree), sep="/")
    return {name: tuple(leaf.shape) for name, leaf in tree.items()}
  # Orbax, tensorstore and json each raise their own types on damaged metadata.
  except Exception as error:
    raise _damaged(directory, "its index (state/_METADATA)", error) from error


def read_arrays(
  directory: epath.Path,
  names: Sequence[str],
  shardings: Mapping[str, jax.sharding.Sharding],
  dtypes: Mapping[str, Any],
) -> dict[str, Any]:
  """Reads the named arrays, each into its sharding and dtype, and no others."""
  args = {
    name: ocp.ArrayRestoreArgs(
      sharding=shardings[name],
      dtype=None if dtypes.get(name) is None else jnp.dtype(dtypes[name]),
    )
    for name in names
  }
  restore_args = traverse_util.unflatten_dict(args, sep="/")
  request = ocp.args.PyTreeRestore(
    item=jax.tree.map(lambda _: 0, restore_args),
    restore_args=restore_args,
    partial_restore=True,
  )
  try:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
      state = checkpointer.restore((directory / STATE).absolute(), args=request)
  # As above: several libraries' exceptions, one meaning.
  except Exception as error:
    raise _damaged(directory, f"one of the {len(names)} parameters", error) from error
  return traverse_util.flatten_dict(state, sep="/")


def _damaged(directory: epath.Path, what: str, error: Exception) -> ValueError:
  message = str(error).strip().split("\n")[0][:300]
  return ValueError(
    f"Checkpoint {directory} (Orbax format): {what} could not be read; got "
    f"{type(error).__name__}: {message}. Files are missing or damaged: copy the "
    "checkpoint again."
  )
