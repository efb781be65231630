"""Restoring checkpoints, one a network, into the train state of one of our models.

T5X builds the manager that `utils.RestoreCheckpointConfig.checkpoint_manager_cls`
names and asks it for the checkpoint at the configuration's `path`, the target's.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import flax.core
import jax
from t5x import utils
from t5x.train_state import InferenceState

from specdec_t5x import console, same_bits, tuning
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.checkpoints.readers import abstract_state
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoders import Decoder
from specdec_t5x.network import rounded


class CheckpointManager:
  """Restores {name: parameters}, each network from a folder of any name.

  Each checkpoint may be in T5X's format or Orbax's.
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
      directory: unused; the paths are whole.
      train_state: shapes of the parameters.
      partitioner: says where each parameter lives.
      restore_dtype: of the restored parameters; None keeps the checkpoint's.
      paths: of the networks' checkpoints, by their names; the target's stands in for
        T5X's own path, which must be the same.
      decoder: DECODER, where one of its networks has rounded weights.
      ready: is given the parameters once they are on the devices, and returns by name
        what is made of them: what is to be done before anything is compiled (`tune`).
      **kwargs: T5X's other arguments, which concern saving.
    """
    del directory, kwargs
    self._train_state = train_state
    self._partitioner = partitioner
    self._restore_dtype = restore_dtype
    self._paths = paths
    self._networks = decoder.networks if decoder else {}
    self._ready = ready

  def restore(
    self,
    path: str,
    fallback_state: Mapping[str, Any] | None = None,
    state_transformation_fns: Sequence[Any] = (),
  ) -> InferenceState:
    """Returns the restored state.

    Args:
      path: the target's checkpoint.
      fallback_state: must be None.
      state_transformation_fns: must be empty.

    Raises:
      ValueError: where a checkpoint can't be restored, or the arguments ask for more.
    """
    if fallback_state is not None or state_transformation_fns:
      raise ValueError(
        "fallback_to_scratch and assignment_map are not supported: a parameter that "
        "the checkpoint lacks would make another model of the target."
      )
    state = self._train_state
    paths = {**self._paths, "target": path}
    console.stage(f"Restoring {' and '.join(str(x) for x in paths.values() if x)}.")
    names = sorted(set(state.params) & set(paths))  # Other networks are derived.
    with futures.ThreadPoolExecutor(len(names)) as pool:
      states = pool.map(lambda name: self._restore_network(name, paths[name]), names)
      restored = dict(zip(names, states, strict=True))
    params = flax.core.freeze({name: one.params for name, one in restored.items()})
    params = params.copy(self._laid_out(self._ready(params)))
    return state.replace_params(params).replace_step(restored["target"].step)

  def _restore_network(self, name: str, path: str) -> InferenceState:
    """Returns the state of one network, restored from the checkpoint at `path`."""
    checkpoint = Checkpoint.open(path)
    return checkpoint.restore(
      self._stored(name), self._partitioner, self._restore_dtype
    )

  def _stored(self, name: str) -> InferenceState:
    """Returns the shapes of a network's parameters as its checkpoint has them."""
    network, state = self._networks.get(name), self._train_state
    if network and rounded.of_weights(network.config):
      return abstract_state(network)
    return state.replace(params=state.params[name], params_axes=state.params_axes[name])

  def _laid_out(self, derived: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what was derived, each array where the partitioner has it."""
    if not derived:
      return derived
    mesh, derived = self._partitioner.mesh, flax.core.freeze(derived)
    axes = self._partitioner.get_mesh_axes(self._train_state).params
    place = lambda x, spec: jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
    return {name: jax.tree.map(place, derived[name], axes[name]) for name in derived}


class FromCheckpoints(utils.TrainStateInitializer):
  """T5X's `train.train_state_initializer_cls`: networks begin as their checkpoints."""

  def __init__(
    self,
    *args: Any,
    paths: Mapping[str, str | None],
    decoder: Decoder,
    **kwargs: Any,
  ):
    """Creates T5X's initializer.

    Args:
      *args: T5X's.
      paths: of checkpoints, by the networks' names; None where one begins at random.
      decoder: DECODER, whose networks they are.
      **kwargs: T5X's.
    """
    super().__init__(*args, **kwargs)
    networks = decoder.networks
    self._own = {name: (networks[name], path) for name, path in paths.items() if path}

  def from_scratch(self, init_rng: jax.Array) -> Any:
    """Returns the state that training begins with."""
    state = super().from_scratch(init_rng)
    restored = {
      name: Checkpoint.open(path).restore(
        abstract_state(network), self._partitioner, "float32"
      )
      for name, (network, path) in self._own.items()
    }
    known = {name: one.params for name, one in restored.items()}
    return state.replace_params(flax.core.freeze(state.params).copy(known))


def tune(
  params: Mapping[str, Any],
  decoder: Decoder,
  sampling: Sampling,
  rows: int,
  num_decodes: int,
  lengths: Mapping[str, int],
) -> Mapping[str, Any]:
  """Returns what is made of restored parameters; measures what drafts cost.

  What is made: rounded networks, and what a decode derives of the target as it was
  restored. Drafts are measured for the batches that T5X will decode.

  Args:
    params: of the decoder's networks.
    decoder: DECODER.
    sampling: the adjustment of all distributions.
    rows: inputs a call.
    num_decodes: NUM_DECODES.
    lengths: TASK_FEATURE_LENGTHS.
  """
  derived = {
    name: tuning.made(name, make, params[network], network)
    for network in decoder.networks
    for name, make in decoder.derived(sampling, network).items()
  }
  for name, network in decoder.networks.items():
    if rounded.of_weights(network.config):
      derived[name] = tuning.in_weights(network, params[name])
  of_run = lengths["inputs"], sampling, lengths["targets"]
  job = tuning.Job(decoder, rows * num_decodes, *of_run)
  whole = {**params, **derived}
  same_bits.find(decoder, job.rows_at_once, whole)
  tuning.tuned(job, whole)
  return derived
