"""The training loop: steps, periodic measurements and periodic checkpoints."""

import dataclasses
import json
import os
import time
from collections.abc import Mapping

import jax
import numpy as np
import seqio
from etils import epath

from specdec_t5x import console
from specdec_t5x.network.functional import Network, is_decoder_only
from specdec_t5x.training import batches, outputs
from specdec_t5x.training import state as state_lib
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.checkpoints import START, Checkpoints
from specdec_t5x.training.objectives import Objective, Params
from specdec_t5x.training.optimizers import Optimizer
from specdec_t5x.training.state import TrainState
from specdec_t5x.vocabularies.frames import end_ids_of

METRICS = "metrics.jsonl"
_ACCURACY = "validation_accuracy"


@dataclasses.dataclass(frozen=True)
class Loop:
  """The number of steps, and the periods of measurements and checkpoints.

  All periods are numbers of steps. A period of 0 means never.
  """

  steps: int  # Of the whole run, including the steps before a resume.
  log_period: int = 100  # Of lines of training loss.
  validation_period: int = 1000  # Of measurements of the validation loss.
  validation_batches: int = 16  # Packed batches of a measurement.
  metric_period: int = 0  # Of greedy decodes for BLEU or ROUGE.
  metric_examples: int = 256  # Validation examples to decode.
  checkpoint_period: int = 1000  # The last step always has a checkpoint.
  # The number of measurements of the validation split without a better accuracy after
  # which the run ends, with the best parameters; 0 always takes all steps.
  patience: int = 0

  def __post_init__(self):
    for field in dataclasses.fields(self):
      least = 0 if field.name.endswith(("_period", "patience")) else 1
      value = getattr(self, field.name)
      if value != int(value) or value < least:
        raise ValueError(
          f"{field.name.upper()} must be a whole number of at least {least}, got "
          f"{value}." + (" A period of 0 means never." if least == 0 else "")
        )
    periods = self.validation_period, self.checkpoint_period
    if self.patience and (0 in periods or len(set(periods)) > 1):
      raise ValueError(
        "PATIENCE needs a checkpoint for each measurement: VALIDATION_PERIOD must be "
        f"above 0 and equal CHECKPOINT_PERIOD, got {periods[0]} and {periods[1]}. Set "
        "both to some hundred steps."
      )


@dataclasses.dataclass(frozen=True)
class Trainer:
  """A network in training, with the objective, the optimizer and the data."""

  network: Network
  objective: Objective
  optimizer: Optimizer
  data: TaskData
  loop: Loop
  seed: int = 0  # Of dropout.
  frozen: Params = None  # Read by the objective, such as a distillation target's.

  def check(self, reader: Network) -> None:
    """Raises a ValueError if task and splits do not fit the network `reader`.

    The target reads the tokens in the training of drafts for a target.
    """
    data = self.data
    loop = self.loop
    if data.is_decoder_only != is_decoder_only(reader):
      expected = "'targets'" if is_decoder_only(reader) else "'inputs', 'targets'"
      raise ValueError(
        f"TASK_FEATURE_LENGTHS of a {type(reader).__name__} must give lengths for "
        f"{expected}, got {dict(data.feature_lengths)}."
      )
    if loop.metric_period and not getattr(self.network.config, "num_encoder_layers", 0):
      raise ValueError(
        f"METRIC_PERIOD must be 0 for a {type(self.network).__name__} without an "
        f"encoder, got {loop.metric_period}: the network can't decode the task's "
        "inputs by itself. Set METRIC_PERIOD = 0."
      )
    splits = [data.split]
    if loop.validation_period or loop.metric_period:
      splits.append(data.validation_split)
    batches.check_splits(data, splits)
    task = batches.get_task(data.task)
    has_metrics = isinstance(task, seqio.Task) and task.predict_metric_fns
    if loop.metric_period and not has_metrics:
      raise ValueError(
        f"Task {data.task!r} has no metric function (BLEU, ROUGE), so METRIC_PERIOD "
        "must be 0. To get a metric, register the task with a target file, or use a "
        "task instead of a mixture."
      )
    for name, feature in task.output_features.items():
      size = feature.vocabulary.vocab_size
      if size > reader.config.vocab_size:
        raise ValueError(
          f"The vocabulary of {name!r} in task {data.task!r} has {size} tokens, but "
          f"the network's vocab_size is {reader.config.vocab_size}. Set vocab_size to "
          f"at least {size} (a multiple of 128 is fastest)."
        )

  def run(self, params: Params, directory: str, checkpoints: Checkpoints) -> TrainState:
    """Trains to the last step, from the last complete checkpoint if there is one.

    Returns the state after the last step, or with `Loop.patience` the state with the
    best validation accuracy, which may be the state before the first step.

    Args:
      params: parameters before the first step.
      directory: the run's directory, for the log.
      checkpoints: the run's checkpoints.

    Raises:
      state.DivergedError: if the loss or the gradient is not finite.
    """
    split, copied = state_lib.shardings(self.data.batch_size)
    first_state = state_lib.initial_state(params, self.optimizer)
    state = jax.device_put(first_state, copied)
    state, position = checkpoints.restore(state) or (state, START)
    loop = self.loop
    first = int(state.step)
    log = MetricsLog(directory, first)
    take_step = state_lib.make_train_step(self.network, self.objective, self.seed)
    frozen = jax.device_put(self.frozen, copied)
    source = batches.train_batches(self.data, position)
    measured = {}
    last_logged = None
    accuracies = {x["step"]: x[_ACCURACY] for x in log.lines if _ACCURACY in x}
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params)) / 1e6
    where = f" from step {first}" if first else ""
    console.stage(
      f"Training {size:.1f}M parameters on {self.data.task}{where} to step "
      f"{loop.steps}: batch size {self.data.batch_size}, on "
      f"{jax.devices()[0].platform}."
    )

    def record(step, values):
      log.write(step, values)
      console.stage(f"Step {step}: {_said(values)}.")
      measured.update(values)
      if _ACCURACY in values:
        accuracies[step] = values[_ACCURACY]

    if loop.patience and not accuracies:
      checkpoints.save(state, position)
      record(first, self._validated(state.params, split, frozen))
    with outputs.progress_bar(loop.steps, first, "step") as progress:
      step = first
      while step < loop.steps and not self._is_over(accuracies):
        step += 1
        batch, position = next(source)
        state, numbers = take_step(state, jax.device_put(batch, split), frozen)
        if step == first + 1:
          state_lib.finite(numbers, step)
          console.stage("Compiled the training step.")
        if self._is_due(loop.log_period, step):
          values = state_lib.finite(numbers, step)
          now = time.monotonic()
          if last_logged:  # The steps before the first log include compilation.
            last_step, last_time = last_logged
            seconds = max(now - last_time, 1e-9)
            values["steps_per_second"] = (step - last_step) / seconds
          last_logged = (step, now)
          log.write(step, values)
          progress.set_postfix(loss=f"{values['loss']:.4f}", refresh=False)
          measured |= values
        if self._is_due(loop.validation_period, step):
          record(step, self._validated(state.params, split, frozen))
        if self._is_due(loop.metric_period, step):
          record(step, self._text_metrics(state.params))
        if self._is_due(loop.checkpoint_period, step) or step == loop.steps:
          state_lib.finite(numbers, step)
          checkpoints.save(state, position)
        progress.update()
    console.stage(f"Trained to step {step}: {_said(measured)}.")
    if loop.patience and (step := max(accuracies, key=accuracies.get)) != state.step:
      console.stage(f"Step {step} has the best validation accuracy.")
      state, _ = checkpoints.restore(state, step)
    console.say(f"Checkpoint: {os.path.join(directory, f'checkpoint_{step}')}")
    return state

  def _is_over(self, accuracies: Mapping[int, float]) -> bool:
    """Returns whether the last measurements were no better than an earlier one."""
    values = list(accuracies.values())
    patience = self.loop.patience
    return bool(patience) and len(values) - 1 - int(np.argmax(values)) >= patience

  def _is_due(self, period: int, step: int) -> bool:
    return bool(period) and (step % period == 0 or step == self.loop.steps)

  def _text_metrics(self, params) -> dict[str, float]:
    """Computes the task's metrics of greedy outputs for validation examples."""
    data = self.data
    examples = outputs.examples_of(
      data, data.validation_split, self.loop.metric_examples
    )
    end_ids = end_ids_of(batches.target_vocabulary(data.task))
    decoding = outputs.Decoding(self.network, params, data, end_ids)
    return outputs.text_metrics(decoding, examples)

  def _validated(self, params, split, frozen) -> dict[str, float]:
    """Computes the mean loss and the accuracy on the validation split."""
    data = self.data
    evaluate = state_lib.make_eval_step(self.network, self.objective)
    total = dict.fromkeys(("loss", "correct", "tokens"), 0.0)
    for batch in batches.validation_batches(data, self.loop.validation_batches):
      sums = evaluate(params, jax.device_put(batch, split), frozen)
      total = {name: total[name] + float(sums[name]) for name in total}
    if not total["tokens"]:
      raise ValueError(
        f"Split {data.validation_split!r} of task {data.task!r} holds no target token. "
        "Set VALIDATION_PERIOD = 0, or give the split references."
      )
    return {
      "validation_loss": total["loss"] / total["tokens"],
      _ACCURACY: total["correct"] / total["tokens"],
    }


class MetricsLog:
  """Appends measurements to <directory>/metrics.jsonl, one JSON object per line.

  Args:
    directory: the run's directory.
    step: step at which the run resumes; lines of later steps are removed.
  """

  def __init__(self, directory: str, step: int):
    self._path = epath.Path(directory) / METRICS
    text = self._path.read_text() if self._path.exists() else ""
    # A killed run may have written only a part of the last line.
    lines = [json.loads(x) for x in text.splitlines() if x.endswith("}")]
    self.lines = [line for line in lines if line["step"] <= step]
    partial = self._path.with_name(f"{METRICS}.partial")
    partial.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
    partial.replace(self._path)

  def write(self, step: int, values: Mapping[str, float]) -> None:
    """Appends {"step": step, **values}."""
    # epath's open() can't append in buckets, and the log is a local file anyway.
    with self._path.open("a") as file:
      file.write(json.dumps({"step": step, **values}) + "\n")


def _said(values: Mapping[str, float]) -> str:
  """Returns measurements in words, without the gradient's norm.

  >>> _said({"loss": 0.5, "validation_accuracy": 0.93})
  'loss 0.500, validation accuracy 0.930'
  """
  shown = {k: v for k, v in values.items() if k != "grad_norm"}
  return ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in shown.items())
