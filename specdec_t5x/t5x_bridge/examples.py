"""Which example a row is: what the random keys of its samples are made of.

T5X hands a model a batch and the key of that batch, which depends on BATCH_SIZE, on the
chunk and on nothing of the shard. A model's feature converter, which T5X calls on each
task's dataset, can tell it more: it numbers the examples.
"""

import copy
import functools
import zlib

import gin
import jax.numpy as jnp
import seqio
import t5x
import tensorflow as tf
from absl import flags
from jaxtyping import Array, Bool, Int

EXAMPLE = "example"  # The feature: [task, place in its dataset], int32 [2].
ALONE = seqio.ShardInfo(index=0, num_shards=1)


def numbered(
  converter: type[seqio.FeatureConverter],
  task: str = "",
  shard: seqio.ShardInfo = ALONE,
) -> type[seqio.FeatureConverter]:
  """Returns the converter whose rows also say which examples they are.

  Args:
    converter: makes the model's features.
    task: the task's name.
    shard: which examples of the task it converts: as T5X shards, shard.index and every
      num_shards-th after it.
  """

  class Numbered(converter):
    """Adds the feature `EXAMPLE`."""

    source = task, shard

    def of_shard(self, task: str, shard: seqio.ShardInfo) -> seqio.FeatureConverter:
      """Returns the converter of this shard; `t5x_runtime` asks, upstream does not."""
      converter = copy.copy(self)
      converter.source = task, shard
      return converter

    def __call__(self, ds, task_feature_lengths):
      features = super().__call__(ds, task_feature_lengths)
      return features.enumerate().map(functools.partial(_number, *self.source))

  return Numbered


def _number(task, shard, i, features):
  place = shard.index + shard.num_shards * tf.cast(i, tf.int32)
  return {**features, EXAMPLE: tf.stack([number_of(task), place])}


def is_first(examples: Int[Array, "B 2"]) -> Bool[Array, "B"]:
  """Returns which rows are no copy of one before: T5X fills batches with copies."""
  is_same = (examples[:, None] == examples).all(axis=-1)
  return ~jnp.tril(is_same, -1).any(axis=1)


def number_of(task: str) -> int:
  """Returns what stands for a task in `EXAMPLE`: the same in every process."""
  return zlib.crc32(task.encode()) >> 1  # An int32.


def drawn_names(provider: seqio.Task | seqio.Mixture) -> list[str]:
  """Returns the names by which each task of a run is numbered: upstream, all by one."""
  is_told = hasattr(t5x, "PROVIDER")
  return [
    task.name if is_told else provider.name for task in seqio.get_subtasks(provider)
  ]


def shard_of_command() -> seqio.ShardInfo:
  """Returns the shard that `python -m t5x.infer` is to run, read as T5X reads it."""
  if "shard_id" not in flags.FLAGS or not flags.FLAGS.is_parsed():
    return ALONE
  index = flags.FLAGS.shard_id
  return seqio.ShardInfo(
    index=_bound("infer.shard_id") if index is None else index,
    num_shards=_bound("infer.num_shards"),
  )


def _bound(name: str) -> int:
  value = gin.query_parameter(name)
  is_macro = isinstance(value, gin.config.ConfigurableReference)
  return value.scoped_configurable_fn() if is_macro else value
