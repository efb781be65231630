"""Tasks over source and target texts that a function reads from files."""

from collections.abc import Callable, Mapping

import seqio
import tensorflow as tf

from specdec_t5x.data import registry, vocabularies

Pairs = tuple[list[str], list[str]]


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
  sizes = {split: len(read(origin)[0]) for split, origin in origins.items()}
  # The sizes belong to the spec: a file that grew is another task.
  origin = tuple((split, *origins[split], sizes[split]) for split in sorted(origins))

  def dataset_fn(
    split: str, shuffle_files: bool = False, seed: int | None = None
  ) -> tf.data.Dataset:
    sources, targets = read(origins[split])
    if len(sources) != sizes[split]:
      raise ValueError(
        f"{origins[split]} had {sizes[split]} examples when task {name!r} was "
        f"registered and has {len(sources)} now. Leave files alone while they are used."
      )
    # Tensors, not a Python generator: T5X saves the iterator's position in a
    # tf.train.Checkpoint, which a generator does not support.
    dataset = tf.data.Dataset.from_tensor_slices({"source": sources, "target": targets})
    return dataset.shuffle(len(sources), seed=seed) if shuffle_files else dataset

  spec = registry.TaskSpec(
    origin,
    ("source", "target"),
    prefix,
    vocabulary,
    metric,
  )
  return registry.register(
    name, spec, lambda: seqio.FunctionDataSource(dataset_fn, tuple(origins), sizes)
  )


def check_files(files: Mapping) -> None:
  """Raises a ValueError where no split is given."""
  if not files:
    raise ValueError(
      "files is empty, expected one entry for each split, such as {'test': ...}."
    )
