"""Tasks over texts that a function reads, as from files."""

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
  """Reads every split once to check and count it, then registers the task.

  Args:
    name: the task's name.
    origins: split -> what `read` needs, in a form that compares and prints.
    read: gives the columns of a split, all of one length; called again whenever a
      dataset is built, so that the texts are not held for the life of the process.
    preprocessors: of `registry.TaskSpec`, as are the two last arguments.
    vocabulary: T5's where None.
    metric: a key of `registry.METRICS`, or None.
    inputs_end: whether inputs have an EOS.

  Returns:
    `name`.

  Raises:
    ValueError: there is no split, or from `read`; or the name is taken by another task.
  """
  if not origins:
    raise ValueError(
      "files is empty, expected one entry for each split, such as {'test': ...}."
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
        f"registered and has {size} now. Leave files alone while they are used."
      )
    return {column: texts[part] for column, texts in columns.items()}

  # The sizes belong to the spec: a file that grew is another task.
  origin = tuple((split, *origins[split], sizes[split]) for split in sorted(origins))
  spec = registry.TaskSpec(origin, preprocessors, vocabulary, metric, inputs_end)
  return register_parts(name, spec, rows, sizes)


def register_parts(
  name: str,
  spec: registry.TaskSpec,
  rows: Callable[[str, slice], Columns],
  sizes: Mapping[str, int],
) -> str:
  """Registers a task whose splits, and parts of them, a function gives.

  Args:
    name: the task's name.
    spec: what the task is.
    rows: from a split and a part of it to its columns.
    sizes: examples of each split.

  Returns:
    `name`.

  Raises:
    ValueError: the name is taken by another task.
  """

  def columns_of(split: str) -> Columns:
    found = [rows(*part) for part in parts_of(split, sizes)]
    return {key: [x for part in found for x in part[key]] for key in found[0]}

  def count(split: str) -> int:
    return sum(len(range(sizes[one])[part]) for one, part in parts_of(split, sizes))

  source = functools.partial(_sliced_source, columns_of, count, sizes)
  return registry.register(
    name, spec, source, registry.Texts(tuple(sizes), count, columns_of)
  )


def _sliced_source(columns_of, count, sizes) -> seqio.FunctionDataSource:
  """Returns a source that also gives parts of its splits, such as 'test[:100]'."""

  def dataset_fn(
    split: str, shuffle_files: bool = False, seed: int | None = None
  ) -> tf.data.Dataset:
    columns = columns_of(split)
    # Tensors, not a Python generator: T5X saves the iterator's position in a
    # tf.train.Checkpoint, which a generator does not support.
    dataset = tf.data.Dataset.from_tensor_slices(columns)
    return dataset.shuffle(_height(columns), seed=seed) if shuffle_files else dataset

  class SlicedSource(seqio.FunctionDataSource):
    """Counts the examples of parts, too."""

    has_parts = True

    def num_input_examples(self, split: str) -> int:
      return count(split)

    def get_dataset(self, split, shuffle=True, seed=None, shard_info=None, **words):
      if shuffle and (shard_info is None or shard_info.num_shards == 1):
        # seqio would warn that shuffling can't go on after a restart. This dataset is
        # shuffled as a whole, and its order follows from the seed.
        return dataset_fn(split, shuffle_files=True, seed=seed)
      return super().get_dataset(split, shuffle, seed, shard_info, **words)

  return SlicedSource(dataset_fn, tuple(sizes), sizes)


def parts_of(split: str, sizes: Mapping[str, int]) -> list[tuple[str, slice]]:
  """Returns the splits, and what of each, that TFDS's notation names.

  Args:
    split: as 'test', 'test[:100]', 'test[50%:]' or 'train+test[:10]'.
    sizes: examples of each split.

  Raises:
    ValueError: where it can't be read, names another split or holds no example.
  """
  if split in sizes:
    return [(split, slice(None))]
  infos = {
    name: tfds.core.SplitInfo(name=name, shard_lengths=[size], num_bytes=0)
    for name, size in sizes.items()
  }
  try:
    found = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
  except (ValueError, NotImplementedError) as error:
    reason = str(error).splitlines()[-1]
    raise ValueError(f"{split!r} is no part of {dict(sizes)}: {reason}") from error
  parts = [(part.splitname, slice(part.from_, part.to)) for part in found]
  if not any(range(sizes[name])[part] for name, part in parts):
    raise ValueError(f"{split!r} holds no example of {dict(sizes)}.")
  return parts


def _height(columns: Columns) -> int:
  (size,) = {len(column) for column in columns.values()}
  return size
