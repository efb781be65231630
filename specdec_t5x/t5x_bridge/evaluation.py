"""Evaluation by T5X's `eval`, with speculation's statistics beside the task's metrics.

T5X builds the evaluator that `evaluate.inference_evaluator_cls` names before T5X
restores a checkpoint. T5X then passes the model's steps to the evaluator once per
checkpoint.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
from absl import logging
from etils import epath
from t5x import checkpoints, utils

from specdec_t5x.decoding.checked import check_decoded
from specdec_t5x.t5x_bridge.examples import Shard, provider_of
from specdec_t5x.t5x_bridge.writer import rates

# Statistics that are reported beside a task's metrics.
_RATES = ("tokens_per_target_call", "alpha_by_counts", "alpha_by_mass")


class Evaluator(seqio.Evaluator):
  """seqio's evaluator, for a model of this project.

  The metrics and the statistics of a task come from the same decode.
  """

  # seqio's __del__ reads this attribute, also if a check fails in __init__.
  _metrics_executor = None

  def __init__(
    self,
    mixture_or_task_name: str,
    feature_converter: seqio.FeatureConverter,
    *,
    model: Any,
    dataset_cfg: utils.DatasetConfig,
    restore_cfg: utils.RestoreCheckpointConfig,
    paths: Mapping[str, str],
    begin: Callable[..., None],
    **of_seqio: Any,
  ):
    """Checks the run and reads the task.

    Args:
      mixture_or_task_name: the task or mixture to evaluate.
      feature_converter: the model's converter, which numbers the examples.
      model: the run's model, a model of this project.
      dataset_cfg: the run's configuration of the dataset.
      restore_cfg: the run's configuration of the target's checkpoint.
      paths: paths of the networks' checkpoints by the networks' names.
      begin: `run.begin`.
      **of_seqio: further arguments of seqio's evaluator.

    Raises:
      ValueError: if a check of the run fails.
    """
    paths = {**paths, "target": _target(restore_cfg)}
    begin(dataset_cfg, model, paths=paths, output_macro="EVAL_OUTPUT_DIR")
    if model.returns_all(model.num_decodes):
      raise ValueError(
        "An evaluation needs one output per input, but the run writes NUM_DECODES "
        "outputs. Set NUM_DECODES=1, or use t5x.infer."
      )
    name = provider_of(mixture_or_task_name).name
    converter = feature_converter.of_shard(name, Shard())
    logger = logging.get_absl_logger()
    logger.addFilter(_is_no_advice_on_lengths)
    try:
      super().__init__(mixture_or_task_name, converter, **of_seqio)
    finally:
      logger.removeFilter(_is_no_advice_on_lengths)
    self._log_dir = of_seqio.get("log_dir")
    self._alpha_is_mass = model.decoder.rule.alpha_is_mass

  @functools.cached_property
  def eval_tasks(self) -> Sequence[seqio.Task]:
    """The tasks, each with the statistics of speculation as one more metric."""
    return [
      task.replace(metric_fns=[*task.metric_fns, self.acceptance])
      for task in super().eval_tasks
    ]

  def evaluate(self, *, predict_fn=None, predict_with_aux_fn=None, **kwargs):
    """Evaluates like seqio's evaluator, but never calls `predict_fn`."""
    del predict_fn
    if self._log_dir:  # seqio's JSONLogger does not create the directory.
      epath.Path(self._log_dir).mkdir(parents=True, exist_ok=True)
    decode = functools.cache(predict_with_aux_fn)
    return super().evaluate(
      predict_fn=lambda examples: decode(examples)[0],
      predict_with_aux_fn=decode,
      **kwargs,
    )

  def acceptance(self, targets, predictions, aux_values) -> Mapping[str, float]:
    """Returns a task's rates, as seqio's metric; a rate without trials is omitted."""
    del targets, predictions
    scores, mass = (np.array(aux_values[x]) for x in ("scores", "acceptance_mass"))
    check_decoded(scores, mass, "Example {}".format)
    rows = zip(*aux_values.values(), strict=True)
    rows = [dict(zip(aux_values, row, strict=True)) for row in rows]
    statistics = rates(rows, self._alpha_is_mass)
    values = {name: statistics[name] and statistics[name]["value"] for name in _RATES}
    return {name: value for name, value in values.items() if value is not None}


def _is_no_advice_on_lengths(record: Any) -> bool:
  """Returns False for seqio's warning about lengths that exceed every example.

  The lengths are the gin file's on purpose: `t5x.infer` and `t5x.eval` then share one
  compiled program.
  """
  return "wasted computation" not in record.getMessage()


def _target(cfg: utils.RestoreCheckpointConfig) -> str:
  """Returns the path of the target's checkpoint: in mode 'all', of the latest one."""
  steps = checkpoints.all_steps(cfg.path) if cfg.mode == "all" else ()
  return os.path.join(cfg.path, f"checkpoint_{max(steps)}") if steps else cfg.path
