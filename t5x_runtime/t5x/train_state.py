"""The state of a model at inference: its parameters, their axes, the step."""

from collections.abc import Mapping
from typing import Any

import flax
import flax.core
import jax
import jax.numpy as jnp
from flax import traverse_util
from flax.core import FrozenDict
from flax.linen import partitioning as flax_partitioning

EMPTY_DICT = flax.core.freeze({})
_AXES_SUFFIX = "_axes"


class InferenceState(flax.struct.PyTreeNode):
  """Parameters without an optimizer.

  Attributes:
    step: the training step they come from; None in trees of axes.
    params: nested parameters.
    params_axes: logical axis names, `name_axes` beside every parameter `name`.
    flax_mutables: other variable collections.
    flax_mutables_axes: their logical axis names.
  """

  step: jax.Array | None
  params: FrozenDict
  params_axes: FrozenDict | None = None
  flax_mutables: FrozenDict = EMPTY_DICT
  flax_mutables_axes: FrozenDict | None = None

  @classmethod
  def create(cls, model_variables: Mapping[str, Any]) -> "InferenceState":
    """Splits a model's variables into parameters, mutables and axes, at step 0."""
    others, params = flax.core.pop(flax.core.freeze(model_variables), "params")
    params_axes = others.get("params_axes")
    if params_axes is not None:
      _check_axes(params_axes, params)
    mutables = {k: v for k, v in others.items() if not k.endswith(_AXES_SUFFIX)}
    axes = {k: others[f"{k}_axes"] for k in mutables if f"{k}_axes" in others}
    return cls(
      step=jnp.zeros((), jnp.int32),
      params=params,
      params_axes=params_axes,
      flax_mutables=flax.core.freeze(mutables),
      flax_mutables_axes=flax.core.freeze(axes) if axes else None,
    )

  @property
  def param_states(self) -> FrozenDict:
    raise NotImplementedError("InferenceState has no optimizer states.")

  def state_dict(self) -> dict[str, Any]:
    """The layout that checkpoints have: target, state/step, flax_mutables."""
    state = {
      "target": flax.core.unfreeze(self.params),
      "state": {"step": self.step},
    }
    if self.flax_mutables:
      state["flax_mutables"] = flax.core.unfreeze(self.flax_mutables)
    return state

  def restore_state(self, state_dict: Mapping[str, Any]) -> "InferenceState":
    """This state with the values of `state_dict`."""
    return self.replace(
      params=flax.core.freeze(state_dict["target"]),
      step=state_dict["state"]["step"],
      flax_mutables=flax.core.freeze(state_dict.get("flax_mutables", EMPTY_DICT)),
    )

  def replace_params(self, params: Mapping[str, Any]) -> "InferenceState":
    return self.replace(params=params)

  def replace_step(self, step: jax.Array) -> "InferenceState":
    return self.replace(step=step)

  def replace_flax_mutables(self, flax_mutables: FrozenDict) -> "InferenceState":
    return self.replace(flax_mutables=flax_mutables)

  def as_logical_axes(self) -> "InferenceState":
    """A state whose leaves are PartitionSpecs of logical axis names."""
    if self.params_axes is None:
      raise ValueError(
        "Expected `params_axes` beside the parameters, got none. Create parameters "
        "with flax.linen.partitioning.param_with_axes, or name their axes in "
        "Model.get_initial_variables."
      )
    mutables = EMPTY_DICT
    if self.flax_mutables_axes is not None:
      mutables = flax_partitioning.get_axis_names(self.flax_mutables_axes)
    return InferenceState(
      step=None,
      params=flax_partitioning.get_axis_names(self.params_axes),
      flax_mutables=mutables,
    )


def _check_axes(params_axes, params) -> None:
  """Every parameter has axis names and the reverse."""
  flat_params = traverse_util.flatten_dict(flax.core.unfreeze(params), sep="/")
  flat_axes = traverse_util.flatten_dict(
    flax.core.unfreeze(flax_partitioning.get_axis_names(params_axes)), sep="/"
  )
  missing = sorted(set(flat_params) - set(flat_axes))
  extra = sorted(set(flat_axes) - set(flat_params))
  if missing or extra:
    raise ValueError(
      "Expected logical axes for exactly the parameters; parameters without axes: "
      f"{missing}; axes without a parameter: {extra}. Name them with "
      "param_with_axes or in Model.get_initial_variables."
    )
