"""Restores and writes checkpoints under T5X: the one place that calls its readers."""

import math
import os
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import flax
import jax
import jax.numpy as jnp
from etils import epath
from t5x import checkpoints, partitioning
from t5x.train_state import InferenceState

from specdec_t5x import console, prepared, tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.checkpoints.checks import check_finite, flat_shapes, is_float
from specdec_t5x.network import rounded
from specdec_t5x.network.functional import Network, blank_variables
from specdec_t5x.t5x_bridge.macros import macro_names


def abstract_state(network: Network) -> InferenceState:
  """Returns a state that holds shapes and logical axes, without allocating arrays."""
  return jax.eval_shape(
    lambda: InferenceState.create(flax.core.freeze(blank_variables(network)))
  )


def one_device() -> partitioning.PjitPartitioner:
  """Returns a partitioner that keeps all parameters on one device."""
  return partitioning.PjitPartitioner(num_partitions=1)


def restore(
  checkpoint: Checkpoint, state: InferenceState, partitioner: Any, dtype: str | None
) -> InferenceState:
  """Returns `state` with the checkpoint's parameters, in the partitioner's layout.

  T5X's readers restore the arrays shard by shard, if they can read the checkpoint.

  Args:
    checkpoint: checkpoint of the network.
    state: shapes and logical axes of the parameters.
    partitioner: partitioner that places parameters on devices.
    dtype: 'float32', 'bfloat16' or 'float16'. None keeps the checkpoint's dtypes. A
      table of n-grams always keeps the dtypes, because the table has token ids.

  Raises:
    ValueError: if the checkpoint can't be restored.
  """
  path = checkpoint.path
  if not is_float(state.params):
    dtype = None
  with checkpoint.named_errors(f"Checkpoint {path} could not be restored"):
    reader = checkpoint.t5x_reader
    if reader == "t5x":
      restored = checkpoints.Checkpointer(
        state, partitioner, "", restore_dtype=jnp.dtype(dtype) if dtype else None
      ).restore(path=path)
    elif reader == "orbax":
      # The manager opens the folder of a run; `path` names one checkpoint of the run.
      directory = str(epath.Path(path).parent)
      restored = checkpoints.OrbaxCheckpointManagerInterface(
        directory, state, partitioner, restore_dtype=dtype
      ).restore(path=path)
    else:
      restored = _by_array(checkpoint, state, partitioner, dtype)
  check_finite(path, restored.params)
  return restored


def _by_array(
  checkpoint: Checkpoint, state: InferenceState, partitioner: Any, dtype: str | None
) -> InferenceState:
  """Restores one stored array at a time, directly to the devices."""
  axes = flax.core.unfreeze(partitioner.get_mesh_axes(state).params)
  axes = flax.traverse_util.flatten_dict(axes, sep="/")
  shapes = flat_shapes(state.params)
  # Large arrays need the largest copies, so they are read first, into empty memory.
  names = sorted(shapes, key=lambda name: -math.prod(shapes[name]))
  flat = {}
  for name, array in checkpoint.read({name: shapes[name] for name in names}, dtype):
    layout = jax.sharding.NamedSharding(partitioner.mesh, axes[name])
    flat[name] = jax.make_array_from_callback(shapes[name], layout, array.__getitem__)
  params = flax.core.freeze(flax.traverse_util.unflatten_dict(flat, sep="/"))
  step = jnp.asarray(checkpoint.step, jnp.int32)
  return state.replace_params(params).replace_step(step)


class CheckpointManager:
  """Restores {network's name: parameters}, each network from a folder of any name.

  T5X builds the manager that `utils.RestoreCheckpointConfig.checkpoint_manager_cls`
  names, and then calls `restore` with the path of the target's checkpoint. Each
  checkpoint may have T5X's or Orbax's format. The restored state includes the derived
  parameters, and the model is tuned for them.
  """

  def __init__(
    self,
    directory: str,
    train_state: InferenceState,
    partitioner: Any,
    restore_dtype: str | None = None,
    *,
    paths: Mapping[str, str | None],
    model: Any,
    examples: int,
    lengths: Mapping[str, int],
    **kwargs,
  ):
    """Creates the manager, with T5X's arguments and those that gin binds.

    Args:
      directory: unused, as T5X's arguments about saving in `kwargs`.
      train_state: shapes of the parameters.
      partitioner: the layout of parameters on the devices.
      restore_dtype: dtype of the restored parameters; None keeps the checkpoint's.
      paths: paths of the networks' checkpoints by the networks' names; `restore` takes
        the target's path from T5X, and both paths must be the same.
      model: MODEL.
      examples: number of inputs per call.
      lengths: TASK_FEATURE_LENGTHS.
      **kwargs: unused.
    """
    del directory, kwargs
    self._train_state = train_state
    self._partitioner = partitioner
    self._restore_dtype = restore_dtype
    self._paths = paths
    self._model = model
    self._examples = examples
    self._lengths = lengths

  @macro_names()
  def restore(
    self,
    path: str,
    fallback_state: Mapping[str, Any] | None = None,
    state_transformation_fns: Sequence[Any] = (),
  ) -> InferenceState:
    """Returns the restored state, with the target from the checkpoint at `path`.

    Raises:
      ValueError: if a checkpoint can't be restored, or an argument is not supported.
    """
    if fallback_state is not None or state_transformation_fns:
      raise ValueError(
        "fallback_to_scratch and assignment_map are not supported, because a missing "
        "parameter would change the target. Leave fallback_to_scratch and "
        "assignment_map out."
      )
    paths = {**self._paths, "target": path}
    console.stage(f"Restoring {' and '.join(str(x) for x in paths.values() if x)}.")
    networks = self._model.decoder.networks.items()
    states = {name: abstract_state(network) for name, network in networks}

    def restore_network(name):
      checkpoint = Checkpoint.open(paths[name])
      return restore(checkpoint, states[name], self._partitioner, self._restore_dtype)

    with futures.ThreadPoolExecutor(len(states)) as pool:
      restored = dict(zip(states, pool.map(restore_network, states), strict=True))
    params = flax.core.freeze({name: x.params for name, x in restored.items()})
    derived = self._tuned(params)
    state = self._train_state
    axes = self._partitioner.get_mesh_axes(state).params

    def place(x, spec):
      layout = jax.sharding.NamedSharding(self._partitioner.mesh, spec)
      return jax.device_put(x, layout)

    for name, tree in derived.items():
      tree = jax.tree.map(place, flax.core.freeze(tree), axes[name])
      params = params.copy({name: tree})
    return state.replace_params(params).replace_step(restored["target"].step)

  def _tuned(self, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the derived parameters, and measures the cost of drafts.

    The derived parameters are those of rounded networks and the arrays of
    `Decoder.derive`, from the parameters before rounding. The cost of drafts is
    measured for batches of T5X's size, and the model decodes such batches by the tuned
    decoder.
    """
    model, derived = self._model, {}
    for name, network in model.decoder.networks.items():
      for array, make in model.decoder.derive(model.sampling, name).items():
        derived[array] = prepared.made(array, make, params[name], name)
        model.derived_bytes[array] = {
          "bytes": rounded.size(derived[array]),
          f"bytes_of_{name}": rounded.size(params[name]),
        }
      if rounded.of_weights(network.config):
        derived[name] = prepared.in_weights(network, params[name])
    job = tuning.Job(
      model.decoder,
      rows=self._examples * model.num_decodes,
      input_length=self._lengths["inputs"],
      sampling=model.sampling,
      max_length=self._lengths["targets"],
    )
    tuned = tuning.tuned(job, {**params, **derived})
    model.tuned[job.rows, job.max_length] = job, tuned
    return derived


def check_writable(directory: str, macro: str) -> None:
  """Raises a ValueError if the value of `macro` is not writable; creates no folder."""
  folder = epath.Path(directory)
  if "://" not in str(directory):
    folder = next(p for p in (folder, *folder.absolute().parents) if p.exists())
  probe = folder / f".writable-{os.getpid()}"
  try:
    probe.write_text("")
    probe.unlink()
  except OSError as error:
    raise ValueError(
      f"{macro}={directory} can't be written to ({error}). Choose a directory "
      "with write permission."
    ) from error


class T5XParameters:
  """Writes and reads the parameters of a run, as <directory>/checkpoint_<step>.

  Args:
    network: network of the parameters.
    directory: folder of the run.
  """

  def __init__(self, network: Network, directory: str):
    self._directory = os.path.abspath(directory)
    self._network = network
    self._state = abstract_state(network)

  def save(self, step: int, params: Any) -> None:
    """Writes the checkpoint of a step. Every parameter keeps its dtype."""
    state = self._state.restore_state(
      {"target": params, "state": {"step": jnp.asarray(step, jnp.int32)}}
    )
    # With another `save_dtype`, upstream T5X converts a table's token ids to floats.
    checkpoints.Checkpointer(
      state, one_device(), self._directory, save_dtype=None
    ).save(state)

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
    return Checkpoint.of_network(path, macro, shapes).load(self._network).unfreeze()
