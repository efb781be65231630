"""Tasks over texts that a function reads from files, most of them in pairs."""

from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from specdec_t5x.data import registry, vocabularies

Pairs = tuple[list[str], list[str]]
Columns = Mapping[str, list[str]]


def register_pairs(
  name: str,
  origins: Mapping[str, tuple],
  read: Callable[[tuple], Pairs],
  prefix: str,
  metric: str | None,
  vocabulary: seqio.Vocabulary | None,
) -> str:
  """Reads every split once to check and count it, then registers the task.

  Args:
    name: the task's name.
    origins: split -> what `read` needs, in a form that compares and prints.
    read: gives the source and target texts of a split; called again whenever a
      dataset is built, so that the texts are not held for the life of the process.
    prefix: put before every source.
    metric: a key of `registry.METRICS`, or None.
    vocabulary: T5's where None.

  Returns:
    `name`.

  Raises:
    ValueError: from `read`, or the name is taken by another task.
  """
  if vocabulary is None:
    vocabulary = vocabularies.t5_vocabulary()
  columns = lambda origin: dict(zip(("source", "target"), read(origin), strict=True))
  origin, make_source = read_when_used(name, origins, columns)
  spec = registry.TaskSpec(
    origin,
    ("source", "target"),
    prefix,
    vocabulary,
    metric,
  )
  return registry.register(name, spec, make_source)


def read_when_used(
  name: str, origins: Mapping[str, tuple], read: Callable[[tuple], Columns]
) -> tuple[tuple, Callable[[], seqio.DataSource]]:
  """Reads every split once to check and count it, and makes a source of them.

  Args:
    name: the task's name.
    origins: as in `register_pairs`.
    read: gives the columns of a split, all of one length; called again whenever a
      dataset is built.

  Returns:
    The origin for the task's spec, and what makes the source.
  """
  sizes = {split: _height(read(origin)) for split, origin in origins.items()}
  # The sizes belong to the spec: a file that grew is another task.
  origin = tuple((split, *origins[split], sizes[split]) for split in sorted(origins))

  def dataset_fn(
    split: str, shuffle_files: bool = False, seed: int | None = None
  ) -> tf.data.Dataset:
    columns = read(origins[split])
    size = _height(columns)
    if size != sizes[split]:
      raise ValueError(
        f"{origins[split]} had {sizes[split]} examples when task {name!r} was "
        f"registered and has {size} now. Leave files alone while they are used."
      )
    # Tensors, not a Python generator: T5X saves the iterator's position in a
    # tf.train.Checkpoint, which a generator does not support.
    dataset = tf.data.Dataset.from_tensor_slices(dict(columns))
    return dataset.shuffle(size, seed=seed) if shuffle_files else dataset

  return origin, lambda: seqio.FunctionDataSource(dataset_fn, tuple(origins), sizes)


def _height(columns: Columns) -> int:
  (size,) = {len(column) for column in columns.values()}
  return size


def check_files(files: Mapping) -> None:
  """Raises a ValueError where no split is given."""
  if not files:
    raise ValueError(
      "files is empty, expected one entry for each split, such as {'test': ...}."
    )
