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
    directory: folder of the checkpoint.
    leaf: entry of the array in the index: the array, or the array's location.
    dtype: dtype of the result; None keeps the stored dtype.

  Raises:
    ValueError: if the dtype on disk is not the index's, or the order is not C.
  """
  if not isinstance(leaf, dict):
    return np.asarray(leaf, dtype and jnp.dtype(dtype))
  # Imported here, because decoding without checkpoints needs no tensorstore.
  import tensorstore as ts

  spec = {
    "driver": "zarr",
    "kvstore": _address(directory / folder_of(leaf)),
    # By default tensorstore reads a missing file as zeros.
    "fill_missing_data_reads": False,
  }
  store = ts.open(spec, read=True).result()
  if leaf.get("dtype"):
    _check_layout(store.spec().to_json()["metadata"], leaf["dtype"])
  if dtype is not None:
    store = ts.cast(store, ts.dtype(jnp.dtype(dtype).name))
  return store.read().result()


def _check_layout(metadata: dict[str, Any], name: str) -> None:
  """Raises a ValueError if the dtype on disk is not `name`, or the order is not C.

  tensorstore trusts the metadata on disk, and would return wrong numbers.

  Args:
    metadata: metadata of the array on disk.
    name: name of the array's dtype in the index.
  """
  dtype = name if name == "bfloat16" else np.dtype(name).newbyteorder("<").str
  layout = metadata["dtype"], metadata["order"]
  if layout != (dtype, "C"):
    raise ValueError(
      f"the array on disk is {layout}, but the index records {(dtype, 'C')}"
    )


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
    item: folder of the arrays.
    names: paths of the arrays in the item's tree, for example
      target/decoder/.../kernel.
    dtype: dtype of the results; None keeps the stored dtypes.
  """
  # Imported here, because decoding without checkpoints needs no Orbax.
  import orbax.checkpoint as ocp

  array_args = ocp.RestoreArgs(
    restore_type=np.ndarray, dtype=None if dtype is None else jnp.dtype(dtype)
  )
  flat_args = dict.fromkeys(names, array_args)
  restore_args = flax.traverse_util.unflatten_dict(flat_args, sep="/")
  request = ocp.args.PyTreeRestore(
    item=jax.tree.map(lambda _: 0, restore_args),
    restore_args=restore_args,
    partial_restore=True,
  )
  with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
    restored = checkpointer.restore(item.absolute(), args=request)
  return flax.traverse_util.flatten_dict(restored, sep="/")
