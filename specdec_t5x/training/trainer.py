"""The training loop: steps, and at their periods measurements and checkpoints."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from specdec_t5x import console
from specdec_t5x.network.functional import Network, is_decoder_only
from specdec_t5x.training import batches, outputs
from specdec_t5x.training import state as state_lib
from specdec_t5x.training.batches import TaskData
from specdec_t5x.training.checkpoints import Checkpoints
from specdec_t5x.training.metrics_log import MetricsLog
from specdec_t5x.training.objectives import Objective, Params
from specdec_t5x.training.optimizers import Optimizer
from specdec_t5x.training.outputs import DecodeFn
from specdec_t5x.training.progress import Progress
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
    reader = self.objective.reader(self.network)
    self._check_kind(reader)
    task = batches.get_task(self.data.task)
    loop = self.loop
    validates = loop.validation_period or loop.metric_period
    splits = (self.data.split, *([self.data.validation_split] if validates else []))
    batches.check_splits(self.data, splits)
    if loop.metric_period:
      outputs.check_metrics(self.data.task)
    for name, feature in task.output_features.items():
      size = feature.vocabulary.vocab_size
      if size > reader.config.vocab_size:
        raise ValueError(
          f"The vocabulary of {name!r} in task {self.data.task!r} has {size} tokens, "
          f"but the network's vocab_size is {reader.config.vocab_size}. Set "
          f"vocab_size to at least {size} (a multiple of 128 is fastest)."
        )

  def _check_kind(self, reader) -> None:
    """Raises a ValueError where encoder-decoder meets decoder-only."""
    kind = type(reader).__name__
    if self.data.is_decoder_only != is_decoder_only(reader):
      expected = "'targets'" if is_decoder_only(reader) else "'inputs', 'targets'"
      raise ValueError(
        f"TASK_FEATURE_LENGTHS of a {kind} must give lengths for {expected}, got "
        f"{dict(self.data.feature_lengths)}."
      )
    if self.data.is_decoder_only and self.loop.metric_period:
      raise ValueError(
        f"METRIC_PERIOD must be 0 for a {kind}, got {self.loop.metric_period}: there "
        "are no inputs apart from targets to decode."
      )

  def run(self, params: Params, directory: str, checkpoints: Checkpoints) -> TrainState:
    """Trains to the last step, from the last whole checkpoint if there is one.

    Args:
      params: before the first step.
      directory: of the run, for its log.
      checkpoints: of the run.

    Raises:
      FloatingPointError: where the loss is not finite any more.
    """
    place = state_lib.Placement(self.data.batch_size)
    state = place.copied(state_lib.initial_state(params, self.optimizer.make()))
    position = batches.START
    if (found := checkpoints.restore(state)) is not None:
      state, position = found
    log = MetricsLog(directory, int(state.step))
    measure = self._measurements(place)
    take_step = state_lib.make_train_step(
      self.network, self.objective, self.optimizer, self.seed
    )
    frozen, loop, stream = place.copied(self.frozen), self.loop, _Speed()
    first, measured = int(state.step), {}
    source = batches.train_batches(self.data, position)
    console.stage(self._description(state, first))
    with Progress(loop.steps, first) as progress:
      for step in range(first + 1, loop.steps + 1):
        batch, position = next(source)
        state, info = take_step(state, place.batch(batch), frozen)
        if step == first + 1:
          progress.show(_finite(info, step))
          console.stage("Compiled the training step.")
        due = lambda period, step=step: (
          period and (step % period == 0 or step == loop.steps)
        )
        if due(loop.log_period):
          values = {**_finite(info, step), **stream.since_last(step)}
          log.write(step, values)
          progress.show(values)
          measured |= values
        for period, function in measure:
          if due(period):
            found = function(state.params, frozen)
            log.write(step, found)
            console.stage(f"Step {step}: {_said(found)}.")
            measured |= found
        if due(loop.checkpoint_period) or step == loop.steps:
          _finite(info, step)
          checkpoints.save(state, position)
        progress.after(step)
    console.stage(f"Trained to step {loop.steps}: {_said(measured)}.")
    console.say(f"Checkpoint: {os.path.join(directory, f'checkpoint_{loop.steps}')}")
    return state

  def _description(self, state: TrainState, first: int) -> str:
    """Returns in a line what is trained."""
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params)) / 1e6
    where = f" from step {first}" if first else ""
    return (
      f"Training {size:.1f}M parameters on {self.data.task}{where} to step "
      f"{self.loop.steps}: batch size {self.data.batch_size}, on "
      f"{jax.devices()[0].platform}."
    )

  def _measurements(self, place) -> list[tuple[int, Callable[..., dict[str, float]]]]:
    """Returns (period, measurement of parameters) of what is measured on the way."""
    evaluate = state_lib.make_eval_step(self.network, self.objective)

    def validate(params, frozen):
      total = state_lib.EvalInfo(0.0, 0.0, 0.0)
      for batch in batches.validation_batches(self.data, self.loop.validation_batches):
        info = evaluate(params, place.batch(batch), frozen)
        total = jax.tree.map(lambda a, b: a + float(b), total, info)
      if not total.tokens:
        raise ValueError(
          f"Split {self.data.validation_split!r} of task {self.data.task!r} holds no "
          "target token. Set VALIDATION_PERIOD = 0, or give it references."
        )
      return {
        "validation_loss": total.loss / total.tokens,
        "validation_accuracy": total.correct / total.tokens,
      }

    def decode_metrics(params, frozen):
      del frozen
      decoded = outputs.decode_split(
        self.data.task,
        self.data.validation_split,
        self.data.feature_lengths["inputs"],
        self.decode,
        params,
        self.data.batch_size,
        self.loop.metric_examples,
      )
      return outputs.text_metrics(self.data.task, decoded)

    loop = self.loop
    return [(loop.validation_period, validate), (loop.metric_period, decode_metrics)]


def _said(values: Mapping[str, float]) -> str:
  """Returns measurements as a person reads them.

  >>> _said({"loss": 0.5, "validation_accuracy": 0.93})
  'loss 0.500, validation accuracy 0.930'
  """
  shown = {k: v for k, v in values.items() if k not in ("grad_norm",)}
  return ", ".join(f"{k.replace('_', ' ')} {v:.3f}" for k, v in shown.items())


def _finite(info: state_lib.StepInfo, step: int) -> dict[str, float]:
  """Returns the step's numbers.

  Raises:
    FloatingPointError: where the loss is not finite, before it reaches a checkpoint.
  """
  values = {"loss": float(info.loss), "grad_norm": float(info.grad_norm)}
  if not all(map(math.isfinite, values.values())):
    raise FloatingPointError(
      f"Training diverged: at step {step} the loss is {values['loss']} and the "
      f"gradient's norm {values['grad_norm']}. Lower LEARNING_RATE or lengthen "
      "WARMUP_STEPS; the last checkpoint is from before."
    )
  return values


class _Speed:
  """Steps a second since the last time it was asked."""

  def __init__(self):
    self._time: float = time.monotonic()
    self._step: Any = None

  def since_last(self, step: int) -> dict[str, float]:
    """Returns the speed; nothing the first time, which includes compilation."""
    before, self._time = self._time, time.monotonic()
    last, self._step = self._step, step
    if last is None:
      return {}
    return {"steps_per_second": (step - last) / max(self._time - before, 1e-9)}
