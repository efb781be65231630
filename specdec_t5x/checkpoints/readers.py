"""Restores checkpoints with T5X's readers, which fill a state of known shapes."""

from typing import Any

import flax
import jax
import jax.numpy as jnp
from etils import epath
from t5x import checkpoints, partitioning
from t5x.train_state import InferenceState

from specdec_t5x.network.functional import Network, blank_variables


def abstract_state(network: Network) -> InferenceState:
  """Returns a state that holds shapes and logical axes, without allocating arrays."""

  def make_state():
    return InferenceState.create(flax.core.freeze(blank_variables(network)))

  return jax.eval_shape(make_state)


def one_device() -> partitioning.PjitPartitioner:
  """Returns a partitioner that keeps all parameters on one device."""
  return partitioning.PjitPartitioner(num_partitions=1)


def restore_t5x(
  path: str, state: InferenceState, partitioner: Any, dtype: str | None
) -> InferenceState:
  """Returns the state with the parameters of a checkpoint in T5X's format.

  Args:
    path: folder of the checkpoint.
    state: shapes and logical axes of the parameters.
    partitioner: the layout of the parameters on the devices.
    dtype: dtype of the parameters; None keeps the stored dtypes.
  """
  dtype = jnp.dtype(dtype) if dtype else None
  reader = checkpoints.Checkpointer(state, partitioner, "", restore_dtype=dtype)
  return reader.restore(path=path)


def restore_orbax(
  path: str, state: InferenceState, partitioner: Any, dtype: str | None
) -> InferenceState:
  """Does the same as `restore_t5x`, for Orbax's format."""
  # The manager opens the folder of a run; `path` names one checkpoint of the run.
  reader = checkpoints.OrbaxCheckpointManagerInterface(
    directory=str(epath.Path(path).parent),
    train_state=state,
    partitioner=partitioner,
    restore_dtype=dtype,
  )
  return reader.restore(path=path)
