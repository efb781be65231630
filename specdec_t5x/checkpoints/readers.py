"""T5X's readers of checkpoints, and the state that the readers fill."""

import flax
import jax
import jax.numpy as jnp
from etils import epath
from t5x import checkpoints, partitioning
from t5x.train_state import InferenceState

from specdec_t5x.network.functional import Network, initial_variables


def abstract_state(network: Network) -> InferenceState:
  """Returns the shapes of a network's parameters, and their logical axes."""

  def make_state(key):
    return InferenceState.create(flax.core.freeze(initial_variables(network, key)))

  return jax.eval_shape(make_state, jax.random.key(0))


def one_device() -> partitioning.PjitPartitioner:
  """Returns a partitioner that keeps all parameters on one device."""
  return partitioning.PjitPartitioner(num_partitions=1)


def t5x(path: str, state: InferenceState, partitioner, dtype: str | None):
  """Returns the state with the parameters of a checkpoint in T5X's format."""
  dtype = jnp.dtype(dtype) if dtype else None
  reader = checkpoints.Checkpointer(state, partitioner, "", restore_dtype=dtype)
  return reader.restore(path=path)


def orbax(path: str, state: InferenceState, partitioner, dtype: str | None):
  """Returns the state with the parameters of a checkpoint in Orbax's format."""
  reader = checkpoints.OrbaxCheckpointManagerInterface(
    directory=str(epath.Path(path).parent),
    train_state=state,
    partitioner=partitioner,
    restore_dtype=dtype,
  )
  return reader.restore(path=path)
