"""Evaluation by T5X's `eval`: the task's metrics, and what speculation did beside them.

T5X builds the evaluator that `evaluate.inference_evaluator_cls` names, before it
restores anything, and hands it the model's steps once for each checkpoint.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import seqio
from absl import logging
from etils import epath
from t5x import checkpoints, utils

from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.t5x_bridge.writer import rates

# What is told of a run, beside its metrics.
_RATES = ("tokens_per_target_call", "alpha_by_counts", "alpha_by_mass")


class Evaluator(seqio.Evaluator):
  """seqio's evaluator, for one of our models.

  A task's metrics and the statistics are of one decode.
  """

  _metrics_executor = None  # seqio's __del__ reads it, though a check may fail before.

  def __init__(
    self,
    mixture_or_task_name: str,
    feature_converter: seqio.FeatureConverter,
    *,
    model: Any,
    dataset_cfg: utils.DatasetConfig,
    restore_cfg: utils.RestoreCheckpointConfig,
    paths: Mapping[str, str],
    check: Callable[..., None],
    **of_seqio: Any,
  ):
    """Checks the run and reads the task.

    Args:
      mixture_or_task_name: what is evaluated.
      feature_converter: T5X's; the model's own says which examples it converts.
      model: one of this project's, as T5X has it.
      dataset_cfg: as T5X has it.
      restore_cfg: as T5X has it.
      paths: of the networks' checkpoints, by name.
      check: `preflight.check_run`.
      **of_seqio: further arguments of seqio's evaluator.

    Raises:
      ValueError: where the run can't be, or there is nothing to evaluate.
    """
    del feature_converter
    check(dataset_cfg, model, paths={**paths, "target": _target(restore_cfg)})
    if model.returns_all:
      raise ValueError(
        "An evaluation is of one output an input, and this run writes all of "
        "NUM_DECODES. Set NUM_DECODES=1, or take t5x.infer."
      )
    converter = model.FEATURE_CONVERTER_CLS(pack=False)
    with _without_advice_on_lengths():
      super().__init__(mixture_or_task_name, converter, **of_seqio)
    if not super().eval_tasks:
      raise ValueError(
        f"MIXTURE_OR_TASK_NAME={mixture_or_task_name!r} has no metrics, so there is "
        "nothing to evaluate. Register it with references, or take t5x.infer."
      )
    if "log_dir" in of_seqio:  # seqio's JSONLogger makes none.
      epath.Path(of_seqio["log_dir"]).mkdir(parents=True, exist_ok=True)
    self._acceptance = acceptance_of(model.decoder.alpha_is_mass)

  @functools.cached_property
  def eval_tasks(self) -> Sequence[seqio.Task]:
    """The tasks, with one more metric each."""
    return [
      task.replace(metric_fns=[*task.metric_fns, self._acceptance])
      for task in super().eval_tasks
    ]

  def evaluate(self, *, predict_fn=None, predict_with_aux_fn=None, **given):
    """Returns what seqio's does; `predict_fn` is not called."""
    del predict_fn
    decode = functools.cache(predict_with_aux_fn)
    return super().evaluate(
      predict_fn=lambda examples: decode(examples)[0],
      predict_with_aux_fn=decode,
      **given,
    )


@contextlib.contextmanager
def _without_advice_on_lengths() -> Iterator[None]:
  """Keeps back seqio's warning of lengths that no example fills.

  Lengths are the gin file's on purpose: programs of `t5x.infer` and `t5x.eval` are the
  same then, and are compiled once.
  """
  is_wanted = lambda record: "wasted computation" not in record.getMessage()
  logger = logging.get_absl_logger()
  logger.addFilter(is_wanted)
  try:
    yield
  finally:
    logger.removeFilter(is_wanted)


def acceptance_of(alpha_is_mass: bool) -> Callable[..., Mapping[str, float]]:
  """Returns seqio's metric of what speculation did; rates that are of nothing lack.

  Args:
    alpha_is_mass: whether sum min(p, q) estimates alpha.
  """

  def acceptance(targets, predictions, aux_values) -> Mapping[str, float]:
    del targets, predictions
    column = {name: jnp.asarray(values) for name, values in aux_values.items()}
    name = lambda row: f"Example {row}"
    check_decoded(column["scores"], column["acceptance_mass"], name)
    found = rates(aux_values, alpha_is_mass)
    told = {name: found[name] and found[name]["value"] for name in _RATES}
    return {name: value for name, value in told.items() if value is not None}

  return acceptance


def _target(cfg: utils.RestoreCheckpointConfig) -> str:
  """Returns the target's checkpoint; of all that a folder holds, the latest."""
  if cfg.mode != "all":
    return cfg.path
  steps = checkpoints.all_steps(cfg.path)
  if not steps:
    raise ValueError(
      "RestoreCheckpointConfig.mode='all' evaluates each checkpoint of the folder "
      f"TARGET_CHECKPOINT_PATH={cfg.path}, which holds none."
    )
  return os.path.join(cfg.path, f"checkpoint_{max(steps)}")
