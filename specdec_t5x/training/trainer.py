"""The training loop: steps, and at their periods measurements and checkpoints."""

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
  """How long to train, and what happens when; a period of 0 is never.

  Attributes:
    steps: of the whole run, those before a resume included.
    log_period: steps between lines of training loss.
    validation_period: between measurements of the validation loss.
    validation_batches: how many packed batches it is measured on.
    metric_period: between greedy decodes for BLEU or ROUGE.
    metric_examples: how many validation examples are decoded.
    checkpoint_period: between checkpoints; the last step always has one.
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
          f"{value}." + (" A period of 0 is never." if least == 0 else "")
        )


@dataclasses.dataclass(frozen=True)
class Trainer:
  """A network, what it learns, and from what.

  Attributes:
    network: the network that is trained.
    objective: what is minimised.
    optimizer: how.
    data: on which examples.
    loop: for how long.
    seed: of dropout.
    frozen: parameters that the objective reads, as a distillation target's.
    decode: greedy decoding with the network, for metrics; None where
      `loop.metric_period` is 0.
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
    """Raises a ValueError where task, splits and network do not fit together."""
    reader, data, loop = self.objective.reader(self.network), self.data, self.loop
    kind = type(reader).__name__
    if data.is_decoder_only != is_decoder_only(reader):
      expected = "'targets'" if is_decoder_only(reader) else "'inputs', 'targets'"
      raise ValueError(
        f"TASK_FEATURE_LENGTHS of a {kind} must give lengths for {expected}, got "
        f"{dict(data.feature_lengths)}."
      )
    if data.is_decoder_only and loop.metric_period:
      raise ValueError(
        f"METRIC_PERIOD must be 0 for a {kind}, got {loop.metric_period}: there are "
        "no inputs apart from targets to decode."
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
    """Trains to the last step, from the last whole checkpoint if there is one.

    Args:
      params: before the first step.
      directory: of the run, for its log.
      checkpoints: of the run.

    Raises:
      state.DivergedError: where the loss is not finite any more.
    """
    place = state_lib.Placement(self.data.batch_size)
    state = place.copied(state_lib.initial_state(params, self.optimizer))
    position = START
    if (found := checkpoints.restore(state)) is not None:
      state, position = found
    loop, first = self.loop, int(state.step)
    log = MetricsLog(directory, first)
    take_step = state_lib.make_train_step(self.network, self.objective, self.seed)
    frozen = place.copied(self.frozen)
    source = batches.train_batches(self.data, position)
    measured, last_logged = {}, None
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
          values, now = state_lib.finite(numbers, step), time.monotonic()
          if last_logged:  # The steps before it include compilation.
            seconds = max(now - last_logged[1], 1e-9)
            values["steps_per_second"] = (step - last_logged[0]) / seconds
          last_logged = step, now
          log.write(step, values)
          progress.show(values)
          measured |= values
        found = []
        if self._is_due(loop.validation_period, step):
          found.append(self._validated(state.params, place, frozen))
        if self._is_due(loop.metric_period, step):
          found.append(self._decoded_metrics(state.params))
        for values in found:
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
    """Returns the means of the validation split."""
    data, loop = self.data, self.loop
    evaluate = state_lib.make_eval_step(self.network, self.objective)
    total = dict.fromkeys(("loss", "correct", "tokens"), 0.0)
    for batch in batches.validation_batches(data, loop.validation_batches):
      sums = evaluate(params, place.batch(batch), frozen)
      total = {name: total[name] + float(sums[name]) for name in total}
    if not total["tokens"]:
      raise ValueError(
        f"Split {data.validation_split!r} of task {data.task!r} holds no target token. "
        "Set VALIDATION_PERIOD = 0, or give it references."
      )
    return {
      "validation_loss": total["loss"] / total["tokens"],
      "validation_accuracy": total["correct"] / total["tokens"],
    }

  def _decoded_metrics(self, params) -> dict[str, float]:
    """Returns the task's metrics of what is decoded for the validation split."""
    data = dataclasses.replace(self.data, split=self.data.validation_split)
    examples = self.loop.metric_examples
    decoded = outputs.decode_split(data, self.decode, params, examples)
    return outputs.text_metrics(data.task, decoded)


def _said(values: Mapping[str, float]) -> str:
  """Returns measurements as a person reads them.

  >>> _said({"loss": 0.5, "validation_accuracy": 0.93})
  'loss 0.500, validation accuracy 0.930'
  """
  shown = {k: v for k, v in values.items() if k != "grad_norm"}
  return ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in shown.items())
