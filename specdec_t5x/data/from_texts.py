"""Registers tasks over texts from a function, such as a reader of files."""

from __future__ import annotations

import dataclasses
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
  step: Callable | None,
  vocabulary: seqio.Vocabulary | None,
  metric: str | None = None,
  tokens: tuple[Callable, ...] = (),
) -> str:
  """Reads every split once to check and count the texts, then registers the task.

  Args:
    name: the task's name.
    origins: split -> argument of `read`, comparable and printable.
    read: returns the columns of a split, with equal lengths; each new dataset calls
      `read` again, so that the process does not keep the texts in memory.
    step: as in `registry.TaskSpec`.
    vocabulary: the vocabulary; None means T5's.
    metric: a key of `registry.METRICS`, or None.
    tokens: as in `registry.TaskSpec`.

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
  texts = Texts(name, origins, read, sizes)
  # The spec contains the sizes, because a file that has grown is another task.
  origin = tuple((split, *origins[split], sizes[split]) for split in sorted(origins))
  spec = registry.TaskSpec(origin, step, vocabulary, metric, tokens)
  return registry.register(name, spec, texts.source, texts)


@dataclasses.dataclass(frozen=True)
class Texts:
  """The texts of a task. Splits may be parts, such as 'test[:100]'."""

  name: str
  origins: Mapping[str, tuple]
  read: Callable[[tuple], Columns]
  sizes: Mapping[str, int]

  def count(self, split: str) -> int:
    """Returns the number of examples."""
    parts = _parts_of(split, self.sizes)
    return sum(len(range(self.sizes[name])[part]) for name, part in parts)

  def columns(self, split: str) -> Columns:
    """Reads the raw texts.

    Raises:
      ValueError: if a file has another size than at the registration.
    """
    columns = {}
    for name, part in _parts_of(split, self.sizes):
      origin = self.origins[name]
      whole = self.read(origin)
      if _height(whole) != self.sizes[name]:
        raise ValueError(
          f"{origin} had {self.sizes[name]} examples when task {self.name!r} was "
          f"registered and has {_height(whole)} now. Do not change files of a "
          "registered task."
        )
      for key, texts in whole.items():
        columns.setdefault(key, []).extend(texts[part])
    return columns

  def source(self) -> seqio.FunctionDataSource:
    """Returns seqio's source of the texts, which also counts the examples of parts."""
    texts = self

    def dataset_fn(
      split: str, shuffle_files: bool = False, seed: int | None = None
    ) -> tf.data.Dataset:
      columns = texts.columns(split)
      # T5X saves the iterator's position in a tf.train.Checkpoint. A Python generator
      # does not support this, but tensors do.
      dataset = tf.data.Dataset.from_tensor_slices(columns)
      return dataset.shuffle(_height(columns), seed=seed) if shuffle_files else dataset

    class Source(seqio.FunctionDataSource):
      has_parts = True

      def num_input_examples(self, split: str) -> int:
        return texts.count(split)

      def get_dataset(self, split, shuffle=True, seed=None, shard_info=None, **words):
        if shuffle and (shard_info is None or shard_info.num_shards == 1):
          # seqio would warn that shuffling can't resume after a restart. Here the seed
          # determines the order, because the whole dataset is shuffled.
          return dataset_fn(split, shuffle_files=True, seed=seed)
        return super().get_dataset(split, shuffle, seed, shard_info, **words)

    return Source(dataset_fn, tuple(self.sizes), self.sizes)


def _parts_of(split: str, sizes: Mapping[str, int]) -> list[tuple[str, slice]]:
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
