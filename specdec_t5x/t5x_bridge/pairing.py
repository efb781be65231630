"""Restores one checkpoint per network into the train state of this project's models.

T5X builds the manager that `utils.RestoreCheckpointConfig.checkpoint_manager_cls`
names. T5X then calls the manager's `restore` with the configuration's `path`, the path
of the target's checkpoint.
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any

import flax.core
import jax
from t5x.train_state import InferenceState

from specdec_t5x import console, prepared, tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.network import rounded
from specdec_t5x.t5x_bridge.macros import macro_names
from specdec_t5x.t5x_bridge.model import Decodes
from specdec_t5x.t5x_bridge.restore import abstract_state, restore


class CheckpointManager:
  """Restores {network's name: parameters}, each network from a folder of any name.

  Each checkpoint may have T5X's or Orbax's format. The restored state includes the
  derived parameters, and the model is tuned for them (`tune`).
  """

  def __init__(
    self,
    directory: str,
    train_state: InferenceState,
    partitioner: Any,
    restore_dtype: str | None = None,
    *,
    paths: Mapping[str, str | None],
    model: Decodes,
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
    state = self._train_state
    paths = {**self._paths, "target": path}
    console.stage(f"Restoring {' and '.join(str(x) for x in paths.values() if x)}.")
    names = sorted(set(state.params) & set(paths))  # Other networks are derived.
    with futures.ThreadPoolExecutor(len(names)) as pool:
      states = pool.map(lambda name: self._restore_network(name, paths[name]), names)
      restored = dict(zip(names, states, strict=True))
    params = flax.core.freeze({name: restored[name].params for name in names})
    derived = tune(params, self._model, self._examples, self._lengths)
    mesh = self._partitioner.mesh
    axes = self._partitioner.get_mesh_axes(state).params

    def place(x, spec):
      return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))

    derived = {
      name: jax.tree.map(place, flax.core.freeze(tree), axes[name])
      for name, tree in derived.items()
    }
    return state.replace_params(params.copy(derived)).replace_step(
      restored["target"].step
    )

  def _restore_network(self, name: str, path: str) -> InferenceState:
    """Returns the state of one network, restored from the checkpoint at `path`."""
    network = self._model.decoder.networks[name]
    state = self._train_state
    if rounded.of_weights(network.config):
      stored = abstract_state(network)
    else:
      stored = state.replace(
        params=state.params[name], params_axes=state.params_axes[name]
      )
    return restore(
      Checkpoint.open(path), stored, self._partitioner, self._restore_dtype
    )


def tune(
  params: Mapping[str, Any], model: Decodes, examples: int, lengths: Mapping[str, int]
) -> Mapping[str, Any]:
  """Derives parameters from restored parameters, and measures the cost of drafts.

  The derived parameters are those of rounded networks and the arrays of
  `Decoder.derive`, from the parameters before rounding. The cost of drafts is measured
  for batches of T5X's size, and the model decodes such batches by the tuned decoder.

  Args:
    params: restored parameters of the decoder's networks.
    model: MODEL.
    examples: number of inputs per call.
    lengths: TASK_FEATURE_LENGTHS.

  Returns:
    The derived parameters by name.
  """
  derived = {}
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
    rows=examples * model.num_decodes,
    input_length=lengths["inputs"],
    sampling=model.sampling,
    max_length=lengths["targets"],
  )
  tuned = tuning.tuned(job, {**params, **derived})
  model.tuned[job.rows, job.max_length] = job, tuned
  return derived
