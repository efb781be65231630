"""Packed batches of a seqio task, as a function of the seed and a position.

(seed, epoch) alone determines the order of the epoch's examples and the packing of
examples into rows. A position (epoch, row) therefore identifies the examples that have
been read: a run that resumes from a saved position repeats and skips no example.

Shapes: B batch, E encoder length, L decoder length.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import seqio
import tensorflow as tf

from specdec_t5x.training.checkpoints import START, Position

Row = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TaskData:
  """The examples of a run, with their lengths and the batch size.

  Feature lengths are numbers of tokens per packed row, for 'inputs' and 'targets';
  longer examples are truncated. Without 'inputs' the examples are for a decoder-only
  network: inputs and targets form one text, and every token of the text has a loss.
  """

  task: str  # The name of a registered seqio task or mixture.
  feature_lengths: Mapping[str, int]
  batch_size: int  # Rows per batch; a row holds several examples if they fit.
  seed: int = 0  # Of the order of examples.
  split: str = "train"
  validation_split: str = "validation"  # For validation loss and metrics.

  def __post_init__(self):
    lengths = self.feature_lengths
    valid_names = ({"targets"}, {"inputs", "targets"})
    if set(lengths) not in valid_names or min(lengths.values()) < 1:
      raise ValueError(
        "TASK_FEATURE_LENGTHS must give a length of at least 1 to 'inputs' and "
        f"'targets' only, got {dict(lengths)}. For a decoder-only network give only "
        "'targets', the length of whole texts."
      )
    if self.batch_size < 1:
      raise ValueError(f"BATCH_SIZE must be at least 1, got {self.batch_size}.")
    if self.seed < 0:
      raise ValueError(f"SEED must be at least 0, got {self.seed}.")

  @property
  def is_decoder_only(self) -> bool:
    """Whether the batches are for a decoder-only network."""
    return "inputs" not in self.feature_lengths


def rows_of(dataset: tf.data.Dataset) -> Iterator[Row]:
  """Yields the examples of a dataset, without autotuning.

  tf.data's autotuning has a thread that sleeps for longer and longer times. Deleting an
  iterator may wait for this thread for seconds (TensorFlow 2.21).
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options).as_numpy_iterator()


def get_task(name: str) -> seqio.Task | seqio.Mixture:
  """Returns a registered task or mixture; raises a ValueError if there is none."""
  names = {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
  if name not in names:
    raise ValueError(
      f"Unknown task {name!r} in MIXTURE_OR_TASK_NAME. The registered tasks are: "
      f"{', '.join(sorted(names))}. For your own files bind a function of "
      "specdec_t5x.data.tasks."
    )
  return seqio.get_mixture_or_task(name)


def target_vocabulary(task: str) -> seqio.Vocabulary:
  """Returns the vocabulary of a task's targets."""
  return get_task(task).output_features["targets"].vocabulary


def targets_of(task: str, split: str) -> Iterator[np.ndarray]:
  """Yields the tokens of each target of a split, without truncation."""
  dataset = get_task(task).get_dataset(None, split, use_cached=False, shuffle=False)
  return (example["targets"] for example in rows_of(dataset))


def check_splits(data: TaskData, splits: Sequence[str]) -> None:
  """Raises a ValueError if the task lacks one of these splits."""
  task = get_task(data.task)
  # Slices such as train[:90%] begin with the split's name.
  missing = [s for s in splits if s.split("[")[0] not in task.splits]
  if missing:
    raise ValueError(
      f"Task {data.task!r} has no split {', '.join(map(repr, missing))}; the splits "
      f"are {sorted(task.splits)}. Set SPLIT or VALIDATION_SPLIT, or, for a task "
      "without validation, VALIDATION_PERIOD = 0 and METRIC_PERIOD = 0."
    )


def train_batches(
  data: TaskData, start: Position = START
) -> Iterator[tuple[Batch, Position]]:
  """Yields batches [B, ...] without end, each with the position after the batch.

  The next epoch fills a batch that is incomplete at the end of an epoch.
  """
  batch = []
  first_row = start.row
  for epoch in itertools.count(start.epoch):
    row_count = first_row
    for row in epoch_rows(data, epoch, first_row):
      batch.append(row)
      row_count += 1
      if len(batch) == data.batch_size:
        yield _stack(batch), Position(epoch, row_count)
        batch = []
    if not row_count:
      raise ValueError(
        f"Split {data.split!r} of task {data.task!r} holds no example within the "
        f"lengths {dict(data.feature_lengths)}. Check the files and the lengths."
      )
    first_row = 0


def validation_batches(data: TaskData, limit: int) -> Iterator[Batch]:
  """Yields at most `limit` packed batches in order; zeros fill up the last batch."""
  dataset = rows_of(_packed(data, data.validation_split, None))
  for _ in range(limit):
    rows = list(itertools.islice(dataset, data.batch_size))
    if not rows:
      return
    empty = {name: np.zeros_like(value) for name, value in rows[0].items()}
    yield _stack([*rows, *[empty] * (data.batch_size - len(rows))])


def epoch_rows(data: TaskData, epoch: int, first: int = 0) -> Iterator[Row]:
  """Yields an epoch's packed rows from the row `first` on."""
  seed = int(np.random.SeedSequence([data.seed, epoch]).generate_state(1)[0] >> 1)
  return rows_of(_packed(data, data.split, seed).skip(first))


def _packed(data: TaskData, split: str, seed: int | None) -> tf.data.Dataset:
  """Returns one epoch of packed rows, shuffled by `seed`, or unshuffled if None."""
  dataset = get_task(data.task).get_dataset(
    # For a decoder-only network, `prepared` truncates the joined text below.
    None if data.is_decoder_only else data.feature_lengths,
    split,
    use_cached=False,
    shuffle=seed is not None,
    # For sources that do not shuffle; the user's own files do.
    shuffle_buffer_size=16384,
    seed=seed,
    num_epochs=1,
  )
  convert = seqio.EncDecFeatureConverter(pack=True)
  if data.is_decoder_only:
    convert = seqio.LMFeatureConverter(pack=True)

  def prepared(row):
    if not data.is_decoder_only:
      # The converter would also drop the texts, but with a warning for each dataset.
      return {name: row[name] for name in data.feature_lengths}
    # Inputs, if the task has inputs, and targets form one text.
    parts = [row[name] for name in ("inputs", "targets") if name in row]
    return {"targets": tf.concat(parts, axis=0)[: data.feature_lengths["targets"]]}

  def without_positions(row):  # Relative attention needs no positions.
    return {name: x for name, x in row.items() if not name.endswith("positions")}

  dataset = convert(dataset.map(prepared), data.feature_lengths)
  return dataset.map(without_positions).prefetch(64)


def _stack(rows) -> Batch:
  return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
