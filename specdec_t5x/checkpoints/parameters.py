"""A network's parameters as checkpoints in T5X's format, written and read back."""

import os
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import t5x
from t5x import checkpoints

from specdec_t5x.checkpoints.checkpoint import Checkpoint, flat_shapes
from specdec_t5x.checkpoints.readers import abstract_state, one_device
from specdec_t5x.network.functional import Network


class T5XParameters:
  """Parameters of a run as checkpoints that T5X reads, <directory>/checkpoint_<step>.

  Args:
    network: whose parameters they are.
    directory: of the run.
    format: 't5x' or 'orbax', in which they are written.
  """

  def __init__(self, network: Network, directory: str, format: str = "t5x"):
    self._format = format
    self._directory = os.path.abspath(directory)
    self._network = network
    self._state = abstract_state(network)

  @property
  def streams(self) -> bool:
    """Whether parameters may be anything that NumPy reads, written one by one."""
    return self._format == "t5x" and hasattr(t5x, "PROVIDER")

  def save(self, step: int, params: Any) -> None:
    """Writes the parameters as float32."""
    state = self._state.restore_state(
      {"target": params, "state": {"step": jnp.asarray(step, jnp.int32)}}
    )
    how = {
      "partitioner": one_device(),
      # Upstream T5X would make floats of a table's token ids.
      "save_dtype": None,
    }
    if self._format == "orbax":
      kind = checkpoints.OrbaxCheckpointManagerInterface
      writer = kind(self._directory, state, **how)
    else:
      kind = checkpoints.Checkpointer
      writer = kind(state, checkpoints_dir=self._directory, **how)
    writer.save(state)

  def restore(self, step: int) -> Any:
    """Returns the parameters that were written at a step."""
    return self.read(self._path(step))

  def remove(self, step: int) -> None:
    """Removes the checkpoint of a step, if there is one."""
    if os.path.isdir(self._path(step)):
      shutil.rmtree(self._path(step))

  def read(self, path: str, macro: str = "OUTPUT_DIR") -> Any:
    """Returns the parameters of any checkpoint of this network.

    Raises:
      ValueError: naming `macro`, where there is none or it is another network's.
    """
    shapes = flat_shapes(self._state.params)
    params = Checkpoint.of_network(path, macro, shapes).load(self._network)
    return jax.tree.map(jnp.asarray, dict(params.unfreeze()))

  def _path(self, step: int) -> str:
    return os.path.join(self._directory, f"checkpoint_{step}")


class JointParameters:
  """Those of a target and its heads, which train together, as two checkpoints a step.

  Args:
    target: writes the target's, the run's own.
    heads: writes the heads'.
  """

  def __init__(self, target: T5XParameters, heads: T5XParameters):
    self._target, self._heads = target, heads

  def save(self, step: int, params: Any) -> None:
    """Writes both; the target's, by which a step counts, last."""
    self._heads.remove(step)  # A killed run's.
    self._heads.save(step, params["heads"])
    self._target.save(step, params["target"])

  def restore(self, step: int) -> Any:
    """Returns the parameters of target and heads that were written at a step."""
    return {"target": self._target.restore(step), "heads": self._heads.restore(step)}
