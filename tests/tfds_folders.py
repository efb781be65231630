"""Folders of TFDS, written with TFDS's own writer instead of a download."""

import os
from collections.abc import Sequence

import tensorflow_datasets as tfds


def write(dataset: str, data_dir: str, **splits: Sequence[dict[str, str]]) -> None:
  """Writes a dataset.

  Args:
    dataset: the TFDS name, as "wmt14_translate/de-en".
    data_dir: the directory for --tfds_data_dir.
    **splits: the examples of each split, with all features of the dataset.
  """
  builder = tfds.builder(dataset, data_dir=data_dir)
  os.makedirs(builder.data_dir)
  writer = tfds.core.SequentialWriter(builder.info, max_examples_per_shard=1000)
  writer.initialize_splits(list(splits))
  writer.add_examples(splits)
  writer.close_all()
