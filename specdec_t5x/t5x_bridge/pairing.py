"""Restoring one or two checkpoints into the train state of one of our models.

T5X builds the manager that `utils.RestoreCheckpointConfig.checkpoint_manager_cls`
names and asks it for the checkpoint at the configuration's `path`, the target's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.core
from t5x.train_state import InferenceState

from specdec_t5x.assemble import PAIR
from specdec_t5x.t5x_bridge import checkpoint


class TargetCheckpointManager:
  """Restores a model of its own, from a folder of any name."""

  def __init__(
    self,
    directory: str,
    train_state: InferenceState,
    partitioner: Any,
    restore_dtype: str | None = None,
    **kwargs,
  ):
    """Creates the manager.

    Args:
      directory: unused; the paths are whole.
      train_state: shapes of the parameters.
      partitioner: says where each parameter lives.
      restore_dtype: of the restored parameters; None keeps the checkpoint's.
      **kwargs: T5X's other arguments, which concern saving.
    """
    del directory, kwargs
    self._train_state = train_state
    self._partitioner = partitioner
    self._restore_dtype = restore_dtype

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
    return self._restore_all(path)

  def _restore_all(self, path):
    return self._restore_one(path, self._train_state)

  def _restore_one(self, path, state):
    return checkpoint.restore(path, state, self._partitioner, self._restore_dtype)


class PairedCheckpointManager(TargetCheckpointManager):
  """Restores params = {target, draft} from two checkpoints.

  Each may be in T5X's format or Orbax's; gin binds the draft's path.
  """

  def __init__(self, *args, draft_path: str | None, **kwargs):
    """Creates the manager; `draft_path` is the draft's checkpoint, if it has one."""
    super().__init__(*args, **kwargs)
    self._draft_path = draft_path

  def _restore_all(self, path):
    state = self._train_state
    paths = dict(zip(PAIR, (path, self._draft_path), strict=True))
    # A draft that copies has no parameters.
    names = [name for name in PAIR if name in state.params]
    restored = {}
    for name in names:
      alone = state.replace(
        params=state.params[name], params_axes=state.params_axes[name]
      )
      restored[name] = self._restore_one(paths[name], alone)
    params = flax.core.freeze({name: restored[name].params for name in names})
    return state.replace_params(params).replace_step(restored["target"].step)
