"""Registers tasks over texts from a function, such as a reader of files."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from etils import epy

from specdec_t5x.data import registry, vocabularies

with epy.lazy_imports():
  import seqio
  import tensorflow as tf
  import tensorflow_datasets as tfds

Columns = registry.Columns


def register(
  name: str,
  origins: Mapping[str, tuple],
  read: Callable[[tuple], Columns],
  preprocessors: tuple[Callable, ...],
  vocabulary: seqio.Vocabulary | None,
  metric: str | None = None,
  inputs_end: bool = True,
) -> str:
  """Reads every split once to check and count the texts, then registers the task.

  Args:
    name: the task's name.
    origins: split -> argument of `read`, comparable and printable.
    read: returns the columns of a split, with equal lengths; each new dataset calls
      `read` again, so that the process does not keep the texts in memory.
    preprocessors: as in `registry.TaskSpec`.
    vocabulary: the vocabulary; None means T5's.
    metric: a key of `registry.METRICS`, or None.
    inputs_end: whether inputs have an EOS.

  Returns:
    `name`.

  Raises:
    ValueError: if there is no split, `read` raises an error, or another task has the
      name.
  """
  if not origins:
    raise ValueError(
      "files must have an entry for every split, such as {'test': ...}, got an empty "
      "dict."
    )
  if vocabulary is None:
    vocabulary = vocabularies.t5_vocabulary()
  sizes = {split: _height(read(origin)) for split, origin in origins.items()}

  def rows(split: str, part: slice) -> Columns:
    columns = read(origins[split])
    size = _height(columns)
    if size != sizes[split]:
      raise ValueError(
        f"{origins[split]} had {sizes[split]} examples when task {name!r} was "
        f"registered and has {size} now. Do not change files of a registered task."
      )
    return {column: texts[part] for column, texts in columns.items()}

  def columns_of(split: str) -> Columns:
    parts = [rows(name, part) for name, part in parts_of(split, sizes)]
    return {key: [x for part in parts for x in part[key]] for key in parts[0]}

  def count(split: str) -> int:
    return sum(len(range(sizes[name])[part]) for name, part in parts_of(split, sizes))

  # The spec contains the sizes, because a file that has grown is another task.
  origin = tuple((split, *origins[split], sizes[split]) for split in sorted(origins))
  return registry.register(
    name,
    registry.TaskSpec(origin, preprocessors, vocabulary, metric, inputs_end),
    functools.partial(_sliced_source, columns_of, count, sizes),
    registry.Texts(tuple(sizes), count, columns_of),
  )


def _sliced_source(
  columns_of: Callable[[str], Columns],
  count: Callable[[str], int],
  sizes: Mapping[str, int],
) -> seqio.FunctionDataSource:
  """Returns a source of splits and of parts of splits, such as 'test[:100]'."""

  def dataset_fn(
    split: str, shuffle_files: bool = False, seed: int | None = None
  ) -> tf.data.Dataset:
    columns = columns_of(split)
    # T5X saves the iterator's position in a tf.train.Checkpoint. A Python generator
    # does not support this, but tensors do.
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    return dataset.shuffle(_height(columns), seed=seed) if shuffle_files else dataset

  class SlicedSource(seqio.FunctionDataSource):
    """A source that also counts the examples of parts."""

    has_parts = True

    def num_input_examples(self, split: str) -> int:
      return count(split)

    def get_dataset(self, split, shuffle=True, seed=None, shard_info=None, **words):
      if shuffle and (shard_info is None or shard_info.num_shards == 1):
        # seqio would warn that shuffling can't resume after a restart. Here the seed
        # determines the order, because the whole dataset is shuffled.
        return dataset_fn(split, shuffle_files=True, seed=seed)
      return super().get_dataset(split, shuffle, seed, shard_info, **words)

  return SlicedSource(dataset_fn, tuple(sizes), sizes)


def parts_of(split: str, sizes: Mapping[str, int]) -> list[tuple[str, slice]]:
  """Returns the names and slices of splits in TFDS's notation.

  Args:
    split: such as 'test', 'test[:100]', 'test[50%:]' or 'train+test[:10]'.
    sizes: number of examples per split.

  Raises:
    ValueError: if `split` can't be parsed, names an unknown split or holds no example.
  """
  if split in sizes:
    return [(split, slice(None))]
  infos = {
    name: tfds.core.SplitInfo(name=name, shard_lengths=[size], num_bytes=0)
    for name, size in sizes.items()
  }
  try:
    instructions = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
  except (ValueError, NotImplementedError) as error:
    reason = str(error).splitlines()[-1]
    raise ValueError(f"{split!r} is not a part of {dict(sizes)}: {reason}") from error
  parts = [(x.splitname, slice(x.from_, x.to)) for x in instructions]
  if not any(range(sizes[name])[part] for name, part in parts):
    raise ValueError(
      f"{split!r} holds no example of {dict(sizes)}. Choose another part."
    )
  return parts


def _height(columns: Columns) -> int:
  (size,) = {len(column) for column in columns.values()}
  return size
