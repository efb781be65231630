"""Reads a checkpoint's arrays into host memory with tensorstore or Orbax, without T5X.

Under T5X, `readers` restores arrays shard by shard into a partitioner's layout.
"""

from collections.abc import Sequence
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from specdec_t5x.checkpoints.t5x_index import folder_of


def read_t5x(directory: epath.Path, leaf: Any, dtype: str | None) -> np.ndarray:
  """Reads one array of a checkpoint in T5X's format.

  Args:
    directory: the checkpoint's folder.
    leaf: the array's entry in the index: the array itself, or where it is stored.
    dtype: of the result; None keeps the stored one.

  Raises:
    ValueError: where the file has another type or order than the index says.
  """
  if not isinstance(leaf, dict):
    return np.asarray(leaf, dtype and jnp.dtype(dtype))
  import tensorstore as ts  # Here alone: decoding without checkpoints needs none.

  spec = {
    "driver": "zarr",
    "kvstore": _address(directory / folder_of(leaf)),
    # A lost file must not read as zeros.
    "fill_missing_data_reads": False,
  }
  store = ts.open(spec, read=True).result()
  if leaf.get("dtype"):
    _check_layout(store.spec().to_json()["metadata"], leaf["dtype"])
  if dtype is not None:
    store = ts.cast(store, ts.dtype(jnp.dtype(dtype).name))
  return store.read().result()


def _check_layout(metadata: dict[str, Any], name: str) -> None:
  """Raises a ValueError where an array's bytes would be read as other numbers.

  Args:
    metadata: of the array on disk.
    name: of its type in the index.
  """
  dtype = name if name == "bfloat16" else np.dtype(name).newbyteorder("<").str
  found = metadata["dtype"], metadata["order"]
  if found != (dtype, "C"):
    raise ValueError(f"the array on disk is {found}, but the index says {(dtype, 'C')}")


def _address(folder: epath.Path) -> dict[str, str]:
  """Returns tensorstore's address of a local or gs:// folder."""
  if str(folder).startswith("gs://"):
    bucket, _, path = str(folder).removeprefix("gs://").partition("/")
    return {"driver": "gcs", "bucket": bucket, "path": f"{path}/"}
  return {"driver": "file", "path": f"{folder.absolute()}/"}


def read_orbax(
  item: epath.Path, names: Sequence[str], dtype: str | None
) -> dict[str, np.ndarray]:
  """Reads arrays of a checkpoint in Orbax's format.

  Args:
    item: the folder that holds them.
    names: their paths in its tree, as target/decoder/.../kernel.
    dtype: of the results; None keeps the stored ones.
  """
  import orbax.checkpoint as ocp  # Here alone: decoding without checkpoints needs none.

  how = ocp.RestoreArgs(
    restore_type=np.ndarray, dtype=None if dtype is None else jnp.dtype(dtype)
  )
  restore_args = flax.traverse_util.unflatten_dict(dict.fromkeys(names, how), sep="/")
  request = ocp.args.PyTreeRestore(
    item=jax.tree.map(lambda _: 0, restore_args),
    restore_args=restore_args,
    partial_restore=True,
  )
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    restored = checkpointer.restore(item.absolute(), args=request)
  return flax.traverse_util.flatten_dict(restored, sep="/")
