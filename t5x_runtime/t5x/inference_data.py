"""Checks a dataset, and reads chunks of texts and of the model's features."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from etils import epy

from t5x import plain_tasks, quiet_start, utils
from t5x.plain_tasks import Rows

with epy.lazy_imports():
  import seqio
  import tensorflow as tf


def check_dataset(cfg: utils.DatasetConfig) -> None:
  """Raises a ValueError if the task is unknown, or the configuration is invalid."""
  if cfg.module:
    try:
      utils.import_module(cfg.module)
    except ImportError as error:
      raise ValueError(
        f"MIXTURE_OR_TASK_MODULE={cfg.module} can't be imported: {error}. Check the "
        "name. The module must be on Python's path."
      ) from error
  lengths = cfg.task_feature_lengths
  if not (lengths and isinstance(lengths, Mapping)):
    raise ValueError(
      "TASK_FEATURE_LENGTHS must be {'inputs': ..., 'targets': ...}, got "
      f"{lengths!r}."
    )
  if cfg.shuffle or cfg.pack:
    raise ValueError(
      f"Expected DatasetConfig with shuffle=False and pack=False, got {cfg.shuffle} "
      f"and {cfg.pack}. Results are in the order of the dataset."
    )
  name = cfg.mixture_or_task_name
  names = plain_tasks.known_names()
  if isinstance(name, str) and name not in names:
    close = difflib.get_close_matches(name, names) or sorted(names)
    raise ValueError(
      f"Unknown task {name!r} in MIXTURE_OR_TASK_NAME. The closest known tasks are: "
      f"{', '.join(close[:8]) or 'none'}. Import the module that registers the task in "
      "your gin file."
    )


def open_examples(
  cfg: utils.DatasetConfig, model: Any, shard_id: int, num_shards: int
) -> PlainExamples | SeqioExamples:
  """Returns a reader of the examples of a shard of a task or mixture.

  Args:
    cfg: the dataset's configuration, with the task's name.
    model: the model, which converts examples to features.
    shard_id: index of this job's shard of the dataset.
    num_shards: number of shards of the dataset.
  """
  task = plain_tasks.find(cfg.mixture_or_task_name)
  has_plain_features = hasattr(model.FEATURE_CONVERTER_CLS, "plain_features")
  if task is not None and not cfg.use_cached and has_plain_features:
    return PlainExamples(cfg, model, task, shard_id, num_shards)
  quiet_start.import_seqio()
  return SeqioExamples(cfg, model, shard_id, num_shards)


@dataclasses.dataclass
class PlainExamples:
  """Reads a shard of a task of texts, without TensorFlow."""

  cfg: utils.DatasetConfig
  model: Any  # Its feature converter has `plain_features`.
  task: plain_tasks.PlainTask
  shard_id: int
  num_shards: int

  @property
  def tasks(self) -> list[plain_tasks.PlainTask]:
    """The task alone."""
    return [self.task]

  def input_spec(self) -> dict[str, Any]:
    """Returns shapes and types of a batch of the model's features."""
    _, features = self._converted(("", ""), 0)
    size = self.cfg.batch_size
    return {
      "input_shapes": {name: (size, *x.shape) for name, x in features.items()},
      "input_types": {name: x.dtype for name, x in features.items()},
    }

  def count(self, task: plain_tasks.PlainTask) -> int:
    """Returns the number of examples in this shard."""
    total = task.num_input_examples(self.cfg.split)
    return len(range(self.shard_id, total, self.num_shards))

  def chunks(
    self, task: plain_tasks.PlainTask, period: int, first: int = 0
  ) -> Iterator[tuple[Rows, Rows]]:
    """Yields (texts, features) of each chunk of `period` batches, from `first` on."""
    size = period * self.cfg.batch_size
    numbered = enumerate(task.read(self.cfg.split))
    shard = itertools.islice(numbered, self.shard_id, None, self.num_shards)
    unfinished = itertools.islice(shard, first * size, None)
    while chunk := list(itertools.islice(unfinished, size)):
      examples, features = zip(
        *(self._converted(texts, place) for place, texts in chunk), strict=True
      )
      yield Rows(examples), Rows(features)

  def _converted(self, texts: tuple[str, str], place: int):
    """Returns an example of these texts, and the model's features of the example."""
    lengths = self.cfg.task_feature_lengths
    example = self.task.example(texts, lengths)
    converter = self.model.FEATURE_CONVERTER_CLS
    return example, converter.plain_features(example, lengths, self.task.name, place)


class SeqioExamples:
  """Reads a shard of a seqio task or mixture, in order."""

  def __init__(
    self, cfg: utils.DatasetConfig, model: Any, shard_id: int, num_shards: int
  ):
    self._provider = seqio.maybe_get_mixture_or_task(cfg.mixture_or_task_name)
    # The mixture's tasks, or the task.
    self.tasks = seqio.get_subtasks(self._provider)
    self._cfg = cfg
    self._model = model
    self._shard = seqio.ShardInfo(index=shard_id, num_shards=num_shards)
    self._read = functools.cache(self._pipeline)

  def _pipeline(self, provider) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns the examples, and the model's features of each example.

    The first attempt disables AutoGraph, which takes two seconds to translate functions
    of seqio without need. A task's function that needs AutoGraph (for an `if` of a
    tensor) raises a TypeError in the first attempt.
    """

    def datasets():
      cfg = self._cfg
      examples = provider.get_dataset(
        sequence_length=cfg.task_feature_lengths,
        split=cfg.split,
        shuffle=False,
        num_epochs=1,
        shard_info=self._shard,
        use_cached=cfg.use_cached,
        seed=cfg.seed,
      )
      converter = self._model.FEATURE_CONVERTER_CLS(pack=False)
      if hasattr(converter, "of_shard"):  # The converter numbers a shard's examples.
        converter = converter.of_shard(provider.name, self._shard)
      return examples, converter(
        examples, task_feature_lengths=cfg.task_feature_lengths
      )

    try:
      return tf.autograph.experimental.do_not_convert(datasets)()
    except TypeError:
      return datasets()

  def input_spec(self) -> dict[str, Any]:
    """Returns shapes and types of a batch of the model's features."""
    _, features = self._read(self._provider)
    spec = features.element_spec
    shapes = {k: (self._cfg.batch_size, *v.shape) for k, v in spec.items()}
    types = {k: np.dtype(v.dtype.as_numpy_dtype) for k, v in spec.items()}
    return {"input_shapes": shapes, "input_types": types}

  def count(self, task: seqio.Task) -> int | None:
    """Returns the number of examples in this shard; None if the number is unknown."""
    if self._shard.num_shards > 1:
      return None
    try:
      return task.num_input_examples(self._cfg.split)
    except (KeyError, ValueError, NotImplementedError):
      return None

  def chunks(
    self, task: seqio.Task, period: int, first: int = 0
  ) -> Iterator[tuple[tf.data.Dataset, tf.data.Dataset]]:
    """Yields (texts, features) of each chunk of `period` batches, from `first` on.

    Earlier chunks are also read, but not yielded. Texts have different lengths, but
    features have equal lengths.
    """
    size = period * self._cfg.batch_size
    examples, features = self._read(task)
    pairs = tf.data.Dataset.zip((examples, features))
    pairs = _untuned(pairs.skip(first * size).prefetch(size)).as_numpy_iterator()
    while rows := list(itertools.islice(pairs, size)):
      texts = tf.data.Dataset.from_generator(
        lambda rows=rows: (text for text, _ in rows),
        output_signature=examples.element_spec,
      )
      columns = {k: np.stack([row[k] for _, row in rows]) for k in rows[0][1]}
      yield _untuned(texts), _untuned(tf.data.Dataset.from_tensor_slices(columns))


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the dataset without autotuning.

  Autotuning has a thread that sleeps for longer and longer times. Deleting an iterator
  may wait for this thread for seconds (TensorFlow 2.21).
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options)
