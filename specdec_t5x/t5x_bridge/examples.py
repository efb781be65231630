"""Numbers of examples, from which the random keys of samples are made.

T5X passes a batch and the key of the batch to a model. The key depends on BATCH_SIZE
and the chunk, but not on the shard. T5X calls a model's feature converter on the
dataset of each task, so the feature converter numbers the examples.
"""

from __future__ import annotations

import copy
import functools
import zlib
from typing import Any, NamedTuple

import gin
import jax.numpy as jnp
import t5x
from absl import flags
from etils import epy
from jaxtyping import Array, Bool, Int

try:
  from t5x import plain_tasks
except ImportError:  # Upstream T5X reads every task by seqio.
  plain_tasks = None

with epy.lazy_imports():
  import seqio
  import tensorflow as tf

EXAMPLE = "example"  # The feature: [task, place in the task's dataset], int32 [2].


class Shard(NamedTuple):
  """A part of a task, as in seqio: every `num_shards`-th example from `index` on."""

  index: int = 0
  num_shards: int = 1


ALONE = Shard()


def numbered(
  converter: type[seqio.FeatureConverter],
  task: str = "",
  shard: Shard = ALONE,
) -> type[seqio.FeatureConverter]:
  """Returns a converter that adds the number of each example as a feature.

  Args:
    converter: the class that makes the model's features.
    task: the task's name.
    shard: the shard of the task that the converter converts.
  """

  class Numbered(converter):
    """Adds the feature `EXAMPLE`."""

    source = task, shard

    def of_shard(self, task: str, shard: Shard) -> seqio.FeatureConverter:
      """Returns the converter of this shard; only `t5x_runtime` calls this method."""
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
  """Returns True for rows that copy no earlier row: T5X fills batches with copies."""
  is_same = (examples[:, None] == examples).all(axis=-1)
  return ~jnp.tril(is_same, -1).any(axis=1)


def number_of(task: str) -> int:
  """Returns a task's number in `EXAMPLE`, the same in every process."""
  return zlib.crc32(task.encode()) >> 1  # An int32.


def provider_of(name: Any) -> Any:
  """Returns the task or mixture of a name, from `t5x_runtime`'s own tasks or seqio."""
  task = plain_tasks and plain_tasks.find(name)
  return task or seqio.maybe_get_mixture_or_task(name)


def task_names() -> list[str]:
  """Returns the names of all tasks and mixtures."""
  if plain_tasks:
    return plain_tasks.known_names()
  return sorted([*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()])


def tasks_of(provider: Any) -> list[Any]:
  """Returns the tasks of a mixture, or the task alone."""
  if plain_tasks and isinstance(provider, plain_tasks.PlainTask):
    return [provider]
  return seqio.get_subtasks(provider)


def drawn_names(provider: Any) -> list[str]:
  """Returns the name behind each task's number in a run.

  Under upstream T5X, all tasks of a mixture have the mixture's name.
  """
  is_own_runtime = hasattr(t5x, "PROVIDER")
  return [task.name if is_own_runtime else provider.name for task in tasks_of(provider)]


def shard_of_command() -> Shard:
  """Returns the shard that `python -m t5x.infer` runs, from flags and bindings."""
  if "shard_id" not in flags.FLAGS or not flags.FLAGS.is_parsed():
    return ALONE
  index = flags.FLAGS.shard_id
  return Shard(
    index=_bound("infer.shard_id") if index is None else index,
    num_shards=_bound("infer.num_shards"),
  )


def _bound(name: str) -> int:
  value = gin.query_parameter(name)
  is_macro = isinstance(value, gin.config.ConfigurableReference)
  return value.scoped_configurable_fn() if is_macro else value
