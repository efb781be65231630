"""The state of a model at inference: parameters, logical axes and the step."""

from collections.abc import Mapping
from typing import Any

import flax
import flax.core
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from flax.linen import partitioning as flax_partitioning


class InferenceState(flax.struct.PyTreeNode):
  """Parameters without an optimizer."""

  step: jax.Array | None  # Training step; None in trees of axes.
  params: FrozenDict
  # Logical axis names, `name_axes` for every parameter `name`.
  params_axes: FrozenDict | None = None

  @classmethod
  def create(cls, model_variables: Mapping[str, Any]) -> "InferenceState":
    """Returns the state of a model's variables, at step 0."""
    variables = flax.core.freeze(model_variables)
    return cls(
      jnp.zeros((), jnp.int32), variables["params"], variables.get("params_axes")
    )

  def state_dict(self) -> dict[str, Any]:
    """Returns the state in the layout of checkpoints: target, state/step."""
    return {"target": flax.core.unfreeze(self.params), "state": {"step": self.step}}

  def restore_state(self, state_dict: Mapping[str, Any]) -> "InferenceState":
    """Returns this state with the values of `state_dict`."""
    params = flax.core.freeze(state_dict["target"])
    return self.replace(params=params, step=state_dict["state"]["step"])

  def replace_params(self, params: Mapping[str, Any]) -> "InferenceState":
    return self.replace(params=params)

  def replace_step(self, step: jax.Array) -> "InferenceState":
    return self.replace(step=step)

  def as_logical_axes(self) -> "InferenceState":
    """Returns a state with PartitionSpecs of logical axis names as leaves."""
    if self.params_axes is None:
      raise ValueError(
        "Expected `params_axes` beside the parameters, got none. Create parameters "
        "with flax.linen.partitioning.param_with_axes, or name the axes in "
        "Model.get_initial_variables."
      )
    return InferenceState(
      step=None, params=flax_partitioning.get_axis_names(self.params_axes)
    )
