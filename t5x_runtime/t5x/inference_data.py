"""A task's examples in chunks, as texts and as the model's features."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from etils import epy

from t5x import plain_tasks, quiet_start, utils
from t5x.plain_tasks import Rows

with epy.lazy_imports():
  import seqio
  import tensorflow as tf


def open_examples(
  cfg: utils.DatasetConfig, model: Any, shard_id: int, num_shards: int
) -> PlainExamples | SeqioExamples:
  """Returns what reads the examples of one shard of a task or mixture.

  Args:
    cfg: names the task.
    model: says which features it takes.
    shard_id: which part of the dataset is this job's.
    num_shards: how many jobs share the dataset.
  """
  task = plain_tasks.find(cfg.mixture_or_task_name)
  is_plain = task is not None and not cfg.use_cached and model.takes_plain_features()
  if is_plain:
    return PlainExamples(cfg, model, task, shard_id, num_shards)
  quiet_start.import_seqio()
  return SeqioExamples(cfg, model, shard_id, num_shards)


class PlainExamples:
  """Reads a shard of a task of texts, without TensorFlow.

  Attributes:
    tasks: the task alone.
  """

  def __init__(
    self,
    cfg: utils.DatasetConfig,
    model: Any,
    task: plain_tasks.PlainTask,
    shard_id: int,
    num_shards: int,
  ):
    self.tasks = [task]
    self._cfg, self._model = cfg, model
    self._shard_id, self._num_shards = shard_id, num_shards

  def input_spec(self) -> dict[str, Any]:
    """Returns shapes and types of a batch of the model's features."""
    (task,) = self.tasks
    features = self._features(task.example(("", ""), self._cfg.task_feature_lengths), 0)
    size = self._cfg.batch_size
    return {
      "input_shapes": {name: (size, *x.shape) for name, x in features.items()},
      "input_types": {name: x.dtype for name, x in features.items()},
    }

  def count(self, task: plain_tasks.PlainTask) -> int:
    """Returns how many examples this shard has."""
    total = task.num_input_examples(self._cfg.split)
    return len(range(self._shard_id, total, self._num_shards))

  def chunks(
    self, task: plain_tasks.PlainTask, period: int, first: int = 0
  ) -> Iterator[tuple[Rows, Rows]]:
    """Yields (texts, features) of each chunk of `period` batches, from `first` on."""
    size = period * self._cfg.batch_size
    shard = itertools.islice(
      enumerate(task.read(self._cfg.split)), self._shard_id, None, self._num_shards
    )
    rest = itertools.islice(shard, first * size, None)
    while chunk := list(itertools.islice(rest, size)):
      examples, features = [], []
      for place, texts in chunk:
        examples.append(task.example(texts, self._cfg.task_feature_lengths))
        features.append(self._features(examples[-1], place))
      yield Rows(examples), Rows(features)

  def _features(self, example: dict[str, Any], place: int) -> dict[str, np.ndarray]:
    (task,) = self.tasks
    lengths = self._cfg.task_feature_lengths
    return self._model.plain_features(example, lengths, task.name, place)


class SeqioExamples:
  """Reads a shard of a seqio task or mixture, in order.

  Attributes:
    tasks: of the mixture, or the task alone.
  """

  def __init__(
    self, cfg: utils.DatasetConfig, model: Any, shard_id: int, num_shards: int
  ):
    self._provider = seqio.maybe_get_mixture_or_task(cfg.mixture_or_task_name)
    self.tasks = seqio.get_subtasks(self._provider)
    self._cfg, self._model = cfg, model
    self._shard = seqio.ShardInfo(index=shard_id, num_shards=num_shards)
    self._read = functools.cache(self._pipeline)

  def _pipeline(self, provider) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    """Returns the examples, and the model's features of each.

    First without AutoGraph, which takes two seconds to translate functions of seqio
    that have no need of it. A task's own function that has, one with an `if` of a
    tensor, raises a TypeError without.
    """
    try:
      return tf.autograph.experimental.do_not_convert(self._datasets)(provider)
    except TypeError:
      return self._datasets(provider)

  def _datasets(self, provider) -> tuple[tf.data.Dataset, tf.data.Dataset]:
    examples = provider.get_dataset(
      sequence_length=self._cfg.task_feature_lengths,
      split=self._cfg.split,
      shuffle=False,
      num_epochs=1,
      shard_info=self._shard,
      use_cached=self._cfg.use_cached,
      seed=self._cfg.seed,
    )
    lengths = self._cfg.task_feature_lengths
    converter = self._model.FEATURE_CONVERTER_CLS(pack=False)
    if hasattr(converter, "of_shard"):  # It wants to know what it converts.
      converter = converter.of_shard(provider.name, self._shard)
    return examples, converter(examples, task_feature_lengths=lengths)

  def input_spec(self) -> dict[str, Any]:
    """Returns shapes and types of a batch of the model's features."""
    _, features = self._read(self._provider)
    spec = features.element_spec
    shapes = {k: (self._cfg.batch_size, *v.shape) for k, v in spec.items()}
    types = {k: np.dtype(v.dtype.as_numpy_dtype) for k, v in spec.items()}
    return {"input_shapes": shapes, "input_types": types}

  def count(self, task: seqio.Task) -> int | None:
    """Returns how many examples this shard has; None where the task can't tell."""
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

    The chunks before it are read, too, but not inferred on.
    """
    size = period * self._cfg.batch_size
    examples, features = self._read(task)
    both = tf.data.Dataset.zip((examples, features))
    both = _untuned(both.skip(first * size).prefetch(size)).as_numpy_iterator()
    while rows := list(itertools.islice(both, size)):
      yield _as_datasets(rows, examples.element_spec)


def _as_datasets(rows, spec) -> tuple[tf.data.Dataset, tf.data.Dataset]:
  """Texts keep their own lengths; features all have the same."""
  texts = [text for text, _ in rows]
  features = {k: np.stack([row[k] for _, row in rows]) for k in rows[0][1]}
  of_texts = tf.data.Dataset.from_generator(lambda: iter(texts), output_signature=spec)
  return _untuned(of_texts), _untuned(tf.data.Dataset.from_tensor_slices(features))


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
  """Returns the dataset without autotuning.

  Its thread sleeps for longer and longer, and what lets go of an iterator may have to
  wait until it wakes: for seconds, in which nothing happens (TensorFlow 2.21).
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return dataset.with_options(options)
