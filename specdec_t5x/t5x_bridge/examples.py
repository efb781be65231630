"""The examples of a run: how many a call decodes, and the numbers of their samples.

T5X passes a batch and the key of the batch to a model. The key depends on BATCH_SIZE
and the chunk, but not on the shard. T5X calls a model's feature converter on the
dataset of each task, so the feature converter numbers the examples.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import gin
import jax
import jax.numpy as jnp
import numpy as np
import t5x
from absl import flags
from etils import epy
from jaxtyping import Array, Bool, Int
from t5x import models

from specdec_t5x import console
from specdec_t5x.core.knobs import invalid, is_whole
from specdec_t5x.t5x_bridge.macros import macro_names

try:
  from t5x import plain_tasks
except ImportError:  # Upstream T5X reads every task by seqio.
  plain_tasks = None

with epy.lazy_imports():
  import seqio
  import tensorflow as tf

_TASK = "utils.DatasetConfig.mixture_or_task_name"
EXAMPLE = "example"  # The feature: [task, place in the task's dataset], int32 [2].


class Shard(NamedTuple):
  """A part of a task, as in seqio: every `num_shards`-th example from `index` on."""

  index: int = 0
  num_shards: int = 1


@macro_names()
def rows_at_once(batch_size: int, read_ahead: int) -> int:
  """Returns the number of rows that decode at once; 0 means all rows of a call.

  The arguments are BATCH_SIZE and READ_AHEAD.

  Raises:
    ValueError: if an argument is not a whole number, or is too small.
  """
  for name, count, least in (
    ("batch_size", batch_size, 1),
    ("read_ahead", read_ahead, 0),
  ):
    if not is_whole(count, least):
      raise invalid(name, f"a whole number of at least {least}", count)
  return batch_size if read_ahead else 0


def inputs_of_call(batch_size: int, read_ahead: int) -> int:
  """Returns the number of inputs of a call; arguments as for `rows_at_once`."""
  if not rows_at_once(batch_size, read_ahead):
    return batch_size
  if read_ahead > 1 and jax.device_count() > 1 and not hasattr(t5x, "PROVIDER"):
    console.say_once(
      "Upstream T5X's partitioner does not report the device of a row, so a finished "
      "row waits for the batch (READ_AHEAD=1)."
    )
    return batch_size
  return batch_size * read_ahead


class NumberedConverter:
  """Makes a converter of seqio that adds each example's number as a feature.

  seqio is imported on first use. The task and the shard of the examples are those of
  the command, unless `of_shard` names others.

  Args:
    name: name of the converter in seqio.
  """

  def __init__(self, name: str):
    self._name = name

  def __call__(self, **settings: Any) -> seqio.FeatureConverter:
    class Numbered(getattr(seqio, self._name)):
      """Adds the feature `EXAMPLE`."""

      source = None

      def of_shard(self, task: str, shard: Any) -> seqio.FeatureConverter:
        """Returns the converter of a task's shard, with `index` and `num_shards`."""
        converter = copy.copy(self)
        converter.source = task, shard
        return converter

      def __call__(self, ds, task_feature_lengths):
        task, shard = self.source or (task_of_command(), shard_of_command())

        def number(i, features):
          place = shard.index + shard.num_shards * tf.cast(i, tf.int32)
          return {**features, EXAMPLE: tf.stack([number_of(task), place])}

        return super().__call__(ds, task_feature_lengths).enumerate().map(number)

    return Numbered(**settings)


class PlainNumberedConverter(NumberedConverter):
  """The converter of encoder-decoder models, also without seqio for `t5x_runtime`."""

  def plain_features(
    self, example: Mapping[str, Any], lengths: Mapping[str, int], task: str, place: int
  ) -> dict[str, np.ndarray]:
    """Returns `t5x_runtime`'s features of an example, and the example's number."""
    plain = models.EncoderDecoderModel.FEATURE_CONVERTER_CLS.plain_features
    number = np.array([number_of(task), place], np.int32)
    return {**plain(example, lengths, task, place), EXAMPLE: number}


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


def tasks_of(provider: Any) -> list[Any]:
  """Returns the tasks of a mixture, or the task alone."""
  if plain_tasks and isinstance(provider, plain_tasks.PlainTask):
    return [provider]
  return seqio.get_subtasks(provider)


def drawn_names(provider: Any) -> list[str]:
  """Returns the name behind each task's number in a run.

  Under upstream T5X, all tasks of a mixture have the mixture's name.
  """
  is_upstream = not hasattr(t5x, "PROVIDER")
  return [provider.name if is_upstream else task.name for task in tasks_of(provider)]


def shard_of_command() -> Shard:
  """Returns the shard that `python -m t5x.infer` runs, from flags and bindings."""
  if "shard_id" not in flags.FLAGS or not flags.FLAGS.is_parsed():
    return Shard()
  index = flags.FLAGS.shard_id
  return Shard(
    index=_bound("infer.shard_id") if index is None else index,
    num_shards=_bound("infer.num_shards"),
  )


def task_of_command() -> str:
  """Returns the name of the task or mixture in gin's bindings; "" without a binding.

  Samples of a run without gin do not depend on the task's name.
  """
  try:
    gin.query_parameter(_TASK)
  except ValueError:  # gin has no public test of a binding.
    return ""
  return provider_of(_bound(_TASK)).name


def _bound(name: str) -> Any:
  value = gin.query_parameter(name)
  is_reference = isinstance(value, gin.config.ConfigurableReference)
  return value.scoped_configurable_fn() if is_reference else value
