"""A task's examples in chunks, as texts and as the model's features."""

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import seqio
import tensorflow as tf

from t5x import utils


class ChunkedExamples:
  """Reads the examples of one shard of a task or mixture, in order."""

  def __init__(
    self,
    cfg: utils.DatasetConfig,
    converter: seqio.FeatureConverter,
    shard: seqio.ShardInfo,
  ):
    self._cfg, self._converter, self._shard = cfg, converter, shard
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
    lengths, converter = self._cfg.task_feature_lengths, self._converter
    if hasattr(converter, "of_shard"):  # It wants to know what it converts.
      converter = converter.of_shard(provider.name, self._shard)
    return examples, converter(examples, task_feature_lengths=lengths)

  def input_spec(self, provider) -> dict:
    """Shapes and types of a batch of the model's features."""
    _, features = self._read(provider)
    spec = features.element_spec
    shapes = {k: (self._cfg.batch_size, *v.shape) for k, v in spec.items()}
    types = {k: np.dtype(v.dtype.as_numpy_dtype) for k, v in spec.items()}
    return {"input_shapes": shapes, "input_types": types}

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
