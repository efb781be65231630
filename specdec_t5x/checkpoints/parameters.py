"""Writes and reads a network's parameters as checkpoints in T5X's format."""

import os
from typing import Any

import jax
import jax.numpy as jnp
from t5x import checkpoints

from specdec_t5x.checkpoints.checkpoint import Checkpoint, flat_shapes
from specdec_t5x.checkpoints.readers import abstract_state, one_device
from specdec_t5x.network.functional import Network


class T5XParameters:
  """Writes and reads the parameters of a run, as <directory>/checkpoint_<step>.

  Args:
    network: network of the parameters.
    directory: folder of the run.
    format: format of the checkpoints, 't5x' or 'orbax'. T5X reads both formats.
  """

  def __init__(self, network: Network, directory: str, format: str = "t5x"):
    self._format = format
    self._directory = os.path.abspath(directory)
    self._network = network
    self._state = abstract_state(network)

  def save(self, step: int, params: Any) -> None:
    """Writes the checkpoint of a step. Every parameter keeps its dtype."""
    state = self._state.restore_state(
      {"target": params, "state": {"step": jnp.asarray(step, jnp.int32)}}
    )
    settings = {
      "partitioner": one_device(),
      # With another value, upstream T5X converts a table's token ids to floats.
      "save_dtype": None,
    }
    if self._format == "orbax":
      writer = checkpoints.OrbaxCheckpointManagerInterface(
        self._directory, state, **settings
      )
    else:
      writer = checkpoints.Checkpointer(
        state, checkpoints_dir=self._directory, **settings
      )
    writer.save(state)

  def restore(self, step: int) -> Any:
    """Returns the parameters that were written at a step."""
    return self.read(os.path.join(self._directory, f"checkpoint_{step}"))

  def read(self, path: str, macro: str = "OUTPUT_DIR") -> Any:
    """Returns the parameters of any checkpoint of this network, as JAX arrays.

    Args:
      path: path of the checkpoint, in any folder.
      macro: gin macro of the path, for messages.

    Raises:
      ValueError: if there is no checkpoint of this network at `path`.
    """
    shapes = flat_shapes(self._state.params)
    params = Checkpoint.of_network(path, macro, shapes).load(self._network)
    return jax.tree.map(jnp.asarray, dict(params.unfreeze()))
