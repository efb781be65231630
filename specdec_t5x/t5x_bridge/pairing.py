"""Restores one checkpoint per network into the train state of this project's models.

T5X builds the manager that `utils.RestoreCheckpointConfig.checkpoint_manager_cls`
names. T5X then calls the manager's `restore` with the configuration's `path`, the path
of the target's checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import flax.core
import jax
from t5x.train_state import InferenceState

from specdec_t5x import console, prepared, tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.network import rounded
from specdec_t5x.t5x_bridge.macros import macro_names
from specdec_t5x.t5x_bridge.restore import abstract_state, restore


class CheckpointManager:
  """Restores {network's name: parameters}, each network from a folder of any name.

  Each checkpoint may have T5X's or Orbax's format.
  """

  def __init__(
    self,
    directory: str,
    train_state: InferenceState,
    partitioner: Any,
    restore_dtype: str | None = None,
    *,
    paths: Mapping[str, str | None],
    decoder: Decoder | None = None,
    ready: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda params: {},
    **kwargs,
  ):
    """Creates the manager.

    Args:
      directory: unused; `paths` holds full paths.
      train_state: shapes of the parameters.
      partitioner: the layout of parameters on the devices.
      restore_dtype: dtype of the restored parameters; None keeps the checkpoint's.
      paths: paths of the networks' checkpoints by the networks' names; `restore` takes
        the target's path from T5X, and both paths must be the same.
      decoder: DECODER, if one of the decoder's networks has rounded weights.
      ready: a function of the parameters on the devices, called before compilation;
        returns the derived parameters by name (`tune`).
      **kwargs: T5X's other arguments, about saving; unused.
    """
    del directory, kwargs
    self._train_state = train_state
    self._partitioner = partitioner
    self._restore_dtype = restore_dtype
    self._paths = paths
    self._networks = decoder.networks if decoder else {}
    self._ready = ready

  @macro_names()
  def restore(
    self,
    path: str,
    fallback_state: Mapping[str, Any] | None = None,
    state_transformation_fns: Sequence[Any] = (),
  ) -> InferenceState:
    """Returns the restored state.

    Args:
      path: path of the target's checkpoint.
      fallback_state: must be None.
      state_transformation_fns: must be empty.

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
    params = params.copy(self._laid_out(self._ready(params)))
    return state.replace_params(params).replace_step(restored["target"].step)

  def _restore_network(self, name: str, path: str) -> InferenceState:
    """Returns the state of one network, restored from the checkpoint at `path`."""
    network = self._networks.get(name)
    if network and rounded.of_weights(network.config):
      stored = abstract_state(network)
    else:
      state = self._train_state
      stored = state.replace(
        params=state.params[name], params_axes=state.params_axes[name]
      )
    return restore(
      Checkpoint.open(path), stored, self._partitioner, self._restore_dtype
    )

  def _laid_out(self, derived: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns derived parameters, sharded by the partitioner."""
    if not derived:
      return derived
    mesh = self._partitioner.mesh
    axes = self._partitioner.get_mesh_axes(self._train_state).params

    def place(x, spec):
      return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))

    derived = flax.core.freeze(derived)
    return {name: jax.tree.map(place, derived[name], axes[name]) for name in derived}


def tune(
  params: Mapping[str, Any], model: Any, examples: int, lengths: Mapping[str, int]
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
  decoder = model.decoder
  derived = {
    name: prepared.made(name, make, params[network], network)
    for network in decoder.networks
    for name, make in decoder.derive(model.sampling, network).items()
  }
  for name, network in decoder.networks.items():
    if rounded.of_weights(network.config):
      derived[name] = prepared.in_weights(network, params[name])
  job = tuning.Job(
    decoder,
    rows=examples * model.num_decodes,
    input_length=lengths["inputs"],
    sampling=model.sampling,
    max_length=lengths["targets"],
  )
  tuned = tuning.tuned(job, {**params, **derived})
  model.tuned[job.rows, job.max_length] = job, tuned
  model.derived_bytes = {
    name: {
      "bytes": rounded.size(derived[name]),
      f"bytes_of_{network}": rounded.size(params[network]),
    }
    for network in decoder.networks
    for name in decoder.derive(model.sampling, network)
  }
  return derived
