"""The training loop: steps, periodic measurements and periodic checkpoints."""

import dataclasses
import os
import time
from collections.abc import Mapping

import jax

from specdec_t5x import console
from specdec_t5x.network.functional import Network, is_decoder_only
from specdec_t5x.training import batches, outputs
from specdec_t5x.training import state as state_lib
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.checkpoints import START, Checkpoints
from specdec_t5x.training.objectives import Objective, Params
from specdec_t5x.training.optimizers import Optimizer
from specdec_t5x.training.outputs import DecodeFn
from specdec_t5x.training.progress import MetricsLog, Progress
from specdec_t5x.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Loop:
  """The number of steps, and the periods of measurements and checkpoints.

  All periods are numbers of steps. A period of 0 means never.

  Attributes:
    steps: number of steps of the whole run, including the steps before a resume.
    log_period: period of lines of training loss.
    validation_period: period of measurements of the validation loss.
    validation_batches: number of packed batches for the validation loss.
    metric_period: period of greedy decodes for BLEU or ROUGE.
    metric_examples: number of validation examples to decode.
    checkpoint_period: period of checkpoints; the last step always has a checkpoint.
  """

  steps: int
  log_period: int = 100
  validation_period: int = 1000
  validation_batches: int = 16
  metric_period: int = 0
  metric_examples: int = 256
  checkpoint_period: int = 1000

  def __post_init__(self):
    for field in dataclasses.fields(self):
      least = 0 if field.name.endswith("_period") else 1
      value = getattr(self, field.name)
      if value != int(value) or value < least:
        raise ValueError(
          f"{field.name.upper()} must be a whole number of at least {least}, got "
          f"{value}." + (" A period of 0 means never." if least == 0 else "")
        )


@dataclasses.dataclass(frozen=True)
class Trainer:
  """A network in training, with the objective, the optimizer and the data.

  Attributes:
    network: the network to train.
    objective: the loss to minimise.
    optimizer: the optimizer.
    data: the examples.
    loop: the number of steps, and the periods.
    seed: seed of dropout.
    frozen: parameters that the objective reads, such as a distillation target's.
    decode: greedy decoding with the network, for metrics; None if `loop.metric_period`
      is 0.
  """

  network: Network
  objective: Objective
  optimizer: Optimizer
  data: TaskData
  loop: Loop
  seed: int = 0
  frozen: Params = None
  decode: DecodeFn | None = None

  def check(self) -> None:
    """Raises a ValueError if task, splits and network are incompatible."""
    reader = self.objective.reader(self.network)
    data = self.data
    loop = self.loop
    kind = type(reader).__name__
    if data.is_decoder_only != is_decoder_only(reader):
      expected = "'targets'" if is_decoder_only(reader) else "'inputs', 'targets'"
      raise ValueError(
        f"TASK_FEATURE_LENGTHS of a {kind} must give lengths for {expected}, got "
        f"{dict(data.feature_lengths)}."
      )
    if data.is_decoder_only and loop.metric_period:
      raise ValueError(
        f"METRIC_PERIOD must be 0 for a {kind}, got {loop.metric_period}: the task has "
        "no inputs to decode. Set METRIC_PERIOD = 0."
      )
    splits = [data.split]
    if loop.validation_period or loop.metric_period:
      splits.append(data.validation_split)
    batches.check_splits(data, splits)
    if loop.metric_period:
      outputs.check_metrics(data.task)
    for name, feature in batches.get_task(data.task).output_features.items():
      size = feature.vocabulary.vocab_size
      if size > reader.config.vocab_size:
        raise ValueError(
          f"The vocabulary of {name!r} in task {data.task!r} has {size} tokens, but "
          f"the network's vocab_size is {reader.config.vocab_size}. Set vocab_size to "
          f"at least {size} (a multiple of 128 is fastest)."
        )

  def run(self, params: Params, directory: str, checkpoints: Checkpoints) -> TrainState:
    """Trains to the last step, from the last complete checkpoint if there is one.

    Args:
      params: parameters before the first step.
      directory: the run's directory, for the log.
      checkpoints: the run's checkpoints.

    Raises:
      state.DivergedError: if the loss or the gradient is not finite.
    """
    place = state_lib.Placement(self.data.batch_size)
    state = place.copied(state_lib.initial_state(params, self.optimizer))
    position = START
    if (restored := checkpoints.restore(state)) is not None:
      state, position = restored
    loop = self.loop
    first = int(state.step)
    log = MetricsLog(directory, first)
    take_step = state_lib.make_train_step(self.network, self.objective, self.seed)
    frozen = place.copied(self.frozen)
    source = batches.train_batches(self.data, position)
    measured = {}
    last_logged = None
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params)) / 1e6
    where = f" from step {first}" if first else ""
    console.stage(
      f"Training {size:.1f}M parameters on {self.data.task}{where} to step "
      f"{loop.steps}: batch size {self.data.batch_size}, on "
      f"{jax.devices()[0].platform}."
    )
    with Progress(loop.steps, first) as progress:
      for step in range(first + 1, loop.steps + 1):
        batch, position = next(source)
        state, numbers = take_step(state, place.batch(batch), frozen)
        if step == first + 1:
          progress.show(state_lib.finite(numbers, step))
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
          progress.show(values)
          measured |= values
        measurements = []
        if self._is_due(loop.validation_period, step):
          measurements.append(self._validated(state.params, place, frozen))
        if self._is_due(loop.metric_period, step):
          measurements.append(self._decoded_metrics(state.params))
        for values in measurements:
          log.write(step, values)
          console.stage(f"Step {step}: {_said(values)}.")
          measured |= values
        if self._is_due(loop.checkpoint_period, step) or step == loop.steps:
          state_lib.finite(numbers, step)
          checkpoints.save(state, position)
        progress.after(step)
    console.stage(f"Trained to step {loop.steps}: {_said(measured)}.")
    console.say(f"Checkpoint: {os.path.join(directory, f'checkpoint_{loop.steps}')}")
    return state

  def _is_due(self, period: int, step: int) -> bool:
    return bool(period) and (step % period == 0 or step == self.loop.steps)

  def _validated(self, params, place, frozen) -> dict[str, float]:
    """Computes the mean loss and the accuracy on the validation split."""
    data = self.data
    evaluate = state_lib.make_eval_step(self.network, self.objective)
    total = dict.fromkeys(("loss", "correct", "tokens"), 0.0)
    for batch in batches.validation_batches(data, self.loop.validation_batches):
      sums = evaluate(params, place.batch(batch), frozen)
      total = {name: total[name] + float(sums[name]) for name in total}
    if not total["tokens"]:
      raise ValueError(
        f"Split {data.validation_split!r} of task {data.task!r} holds no target token. "
        "Set VALIDATION_PERIOD = 0, or give the split references."
      )
    return {
      "validation_loss": total["loss"] / total["tokens"],
      "validation_accuracy": total["correct"] / total["tokens"],
    }

  def _decoded_metrics(self, params) -> dict[str, float]:
    """Decodes the validation split, and returns the task's metrics of the outputs."""
    data = dataclasses.replace(self.data, split=self.data.validation_split)
    examples = self.loop.metric_examples
    decoded = outputs.decode_split(data, self.decode, params, examples)
    return outputs.text_metrics(data.task, decoded)


def _said(values: Mapping[str, float]) -> str:
  """Returns measurements in words, without the gradient's norm.

  >>> _said({"loss": 0.5, "validation_accuracy": 0.93})
  'loss 0.500, validation accuracy 0.930'
  """
  shown = {k: v for k, v in values.items() if k != "grad_norm"}
  return ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in shown.items())
