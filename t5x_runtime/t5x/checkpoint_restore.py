"""Restoring a train state from a checkpoint of either format."""

from collections.abc import Mapping
from typing import Any

import flax.core
import jax
import numpy as np
from etils import epath
from flax import traverse_util
from jax.sharding import NamedSharding, PartitionSpec

from t5x import checkpoint_arrays, orbax_format


def restore_t5x(
  directory: epath.Path, train_state, partitioner, restore_dtype, fallback_state=None
):
  """Restores a checkpoint in T5X's format."""
  entries = checkpoint_arrays.read_index(directory)
  shapes = {name: entry.shape for name, entry in entries.items()}
  plan = _RestorePlan(
    directory, train_state, partitioner, restore_dtype, fallback_state, shapes
  )
  wanted = {name: entries[name] for name in plan.stored}
  values = checkpoint_arrays.read_arrays(wanted, plan.shardings, plan.dtypes)
  return plan.finish(values)


def restore_orbax(
  directory: epath.Path, train_state, partitioner, restore_dtype, fallback_state=None
):
  """Restores a checkpoint in Orbax's format."""
  shapes = orbax_format.read_shapes(directory)
  plan = _RestorePlan(
    directory, train_state, partitioner, restore_dtype, fallback_state, shapes
  )
  wanted = {name: shapes[name] for name in plan.stored}
  values = orbax_format.read_arrays(directory, wanted, plan.shardings, plan.dtypes)
  return plan.finish(values)


class _RestorePlan:
  """What to read from a checkpoint, where to put it, and the checks of both."""

  def __init__(
    self, directory, train_state, partitioner, restore_dtype, fallback_state, shapes
  ):
    self._directory = directory
    self._train_state = train_state
    self._fallback = flatten(fallback_state or {})
    expected = flatten(train_state.state_dict())
    expected.setdefault("state/step", np.zeros((), np.int32))
    self._mesh = partitioner.mesh
    specs = self._specs(partitioner)
    self.stored = []
    for name, leaf in expected.items():
      if name in shapes:
        self._check_shape(name, tuple(leaf.shape) if leaf is not None else (), shapes)
        self.stored.append(name)
      elif name not in self._fallback:
        self._fail_missing(name, expected, shapes)
    self._expected = expected
    self.shardings = {
      name: NamedSharding(self._mesh, specs.get(name) or PartitionSpec())
      for name in expected
    }
    self.dtypes = {
      name: restore_dtype for name in expected if name.startswith("target/")
    }

  def _specs(self, partitioner) -> dict[str, PartitionSpec]:
    if self._train_state.params_axes is None:
      return {}
    axes = partitioner.get_mesh_axes(self._train_state).params
    return {f"target/{k}": v for k, v in flatten(axes).items()}

  def _check_shape(self, name, expected, shapes) -> None:
    if shapes[name] != expected:
      raise ValueError(
        f"Checkpoint {self._directory}: parameter {name} has shape {shapes[name]}, but "
        f"the model expects {expected}. Check that the model's configuration "
        "(vocab_size, emb_dim, num_heads, head_dim, mlp_dim) is that of the checkpoint."
      )

  def _fail_missing(self, name, expected, shapes) -> None:
    missing = sorted(set(expected) - set(shapes) - set(self._fallback))
    raise ValueError(
      f"Checkpoint {self._directory}: parameter {name} is missing ({len(missing)} of "
      f"the {len(expected)} that the model expects are: {missing[:5]}). The checkpoint "
      f"holds {len(shapes)} arrays. Check that the model's configuration (layers, "
      "mlp_activations, logits_via_embedding) is that of the checkpoint, or set "
      "RestoreCheckpointConfig.fallback_to_scratch."
    )

  def finish(self, values: Mapping[str, Any]) -> Any:
    """The train state with the values read, and the fallback's for the rest."""
    state = dict(values)
    for name in self._expected:
      if name not in state:
        state[name] = jax.device_put(self._fallback[name], self.shardings[name])
    return self._train_state.restore_state(traverse_util.unflatten_dict(state, sep="/"))


def flatten(tree: Mapping[str, Any]) -> dict[str, Any]:
  """Leaves of nested dicts by path, as in target/decoder/..."""
  return traverse_util.flatten_dict(flax.core.unfreeze(tree), sep="/")
