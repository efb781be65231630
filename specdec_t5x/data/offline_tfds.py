"""Writes TFDS directories from the user's own files, without a network.

The result is the same as from tensorflow-datasets (the builder's features and version,
TFRecord shards, dataset_info.json), so the ordinary tasks load the result through
--tfds_data_dir. Examples keep the files' order.

A dataset's directory is written under a hidden name beside the final directory, and
renamed at the end: TFDS never reads an incomplete directory.
"""

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import tensorflow_datasets as tfds

from specdec_t5x.data import text_files

# Maximal number of examples per shard. TFDS reads several shards interleaved.
_SHARD_EXAMPLES = 100_000
# Number of examples per call of the writer; TFDS rewrites the metadata in each call.
_CHUNK = 10_000
_TRANSLATION = ("wmt14_translate", "wmt_t2t_translate")
_LM1B = "lm1b"
# The required and the optional fields of datasets that are made from records.
_RECORDS = {
  "cnn_dailymail": (("article", "highlights"), ("publisher", "id")),
  "xsum": (("document", "summary"), ()),
  _LM1B: (("text",), ()),
}


@dataclasses.dataclass(frozen=True)
class ParallelFiles:
  """The two text files of a split, aligned by line."""

  source: str
  target: str


@dataclasses.dataclass(frozen=True)
class TextLines:
  """The text file of a split, one text per line; white space is stripped."""

  path: str


Files = ParallelFiles | TextLines | str


def prepare(
  dataset: str,
  tfds_data_dir: str,
  splits: Mapping[str, Files],
  overwrite: bool = False,
) -> dict[str, int]:
  """Writes the splits of a dataset into a TFDS directory.

  Args:
    dataset: a TFDS name, such as "wmt14_translate/de-en", "wmt_t2t_translate/de-en",
      "cnn_dailymail", "xsum" or "lm1b", with or without the version in the installed
      tensorflow-datasets.
    tfds_data_dir: the directory for --tfds_data_dir, on a local disk, created if
      absent. Existing splits that are not in `splits` are kept.
    splits: split -> ParallelFiles (translation only; the source is English, the target
      the other language), TextLines (lm1b only), or a .jsonl or .csv path. Records have
      the fields "en" and the other language's code; "article" and "highlights" (and
      optionally "publisher", by default empty, and "id", by default the record's
      number); "document" and "summary" for xsum; or "text" for lm1b.
    overwrite: whether to replace existing splits.

  Returns:
    The number of written examples per split.

  Raises:
    ValueError: if the dataset is of another kind, the version is unknown, the input is
      invalid (see `text_files`), or a split exists and `overwrite` is False.
  """
  if not splits:
    raise ValueError("No split was given. Give at least 1 split, such as 'test'.")
  final = _builder(dataset, tfds_data_dir)
  # Reading all files checks all files before the first write.
  examples = {split: _examples(final, files) for split, files in splits.items()}
  _recover(final.data_dir)
  final = _builder(dataset, tfds_data_dir)
  taken = sorted(set(splits) & set(final.info.splits))
  if taken and not overwrite:
    raise ValueError(
      f"{final.data_dir} already has the split {', '.join(taken)}. Choose another "
      "directory, or allow replacing it (--overwrite)."
    )
  _check_format(final)
  with _staging(tfds_data_dir) as directory:
    staged = _builder(dataset, directory)
    _write(staged, examples)
    _keep_other_splits(final, staged)
    _replace(staged.data_dir, final.data_dir)
  return {split: len(rows) for split, rows in examples.items()}


def _builder(dataset: str, directory: str) -> tfds.core.DatasetBuilder:
  """Returns TFDS's builder of a dataset; raises a ValueError for unknown datasets."""
  name = dataset.split("/")[0].split(":")[0]
  if name not in (*_TRANSLATION, *_RECORDS):
    raise ValueError(
      f"Can't prepare {dataset!r}. Expected one of "
      f"{', '.join((*_TRANSLATION, *_RECORDS))} (translation with a language pair, as "
      "in wmt14_translate/de-en). Use the files of other data with "
      "specdec_t5x.data.tasks.translation_from_files or from_records."
    )
  if name in _TRANSLATION and "/" not in dataset:
    raise ValueError(
      f"{dataset!r} lacks a language pair. Give a pair, such as {name}/de-en."
    )
  try:
    return tfds.builder(dataset, data_dir=directory)
  except (AssertionError, ValueError, tfds.core.DatasetNotFoundError) as error:
    raise ValueError(
      f"tensorflow-datasets {tfds.__version__} has no {dataset!r}: {error}"
    ) from error


def _examples(builder: tfds.core.DatasetBuilder, files: Files) -> list[dict[str, str]]:
  """Reads a split's files into the features of the dataset."""
  if isinstance(files, TextLines):
    if builder.name != _LM1B:
      raise ValueError(
        f"{builder.name} has several texts per example, got a text file "
        f"({files.path}). Only {_LM1B} is made from lines of text."
      )
    return [{"text": line.strip()} for line in text_files.read_lines(files.path)]
  if builder.name in _RECORDS:
    return _records(builder.name, files)
  languages = builder.builder_config.language_pair
  if isinstance(files, str):
    return text_files.read_fields(files, languages)
  other, english = languages
  sources, targets = text_files.read_parallel(files.source, files.target)
  return [{english: s, other: t} for s, t in zip(sources, targets, strict=True)]


def _records(name: str, files: ParallelFiles | str) -> list[dict[str, str]]:
  """Reads the records of a dataset other than translation."""
  required, optional = _RECORDS[name]
  if isinstance(files, ParallelFiles):
    raise ValueError(
      f"{name} is made from records with the fields "
      f"{' and '.join(map(repr, required))} (.csv or .jsonl), got parallel files."
    )
  rows = text_files.read_fields(files, required, optional)
  if "id" not in optional:
    return rows
  return [{"publisher": "", "id": str(n), **row} for n, row in enumerate(rows)]


def _write(
  builder: tfds.core.DatasetBuilder, examples: Mapping[str, Sequence[dict]]
) -> None:
  os.makedirs(builder.data_dir)
  writer = tfds.core.SequentialWriter(
    builder.info, max_examples_per_shard=_SHARD_EXAMPLES
  )
  writer.initialize_splits(list(examples))
  for split, rows in examples.items():
    for start in range(0, len(rows), _CHUNK):
      writer.add_examples({split: rows[start : start + _CHUNK]})
  writer.close_all()


def _check_format(builder: tfds.core.DatasetBuilder) -> None:
  """Raises a ValueError if the existing directory has another format than TFRecord."""
  file_format = builder.info.file_format
  if builder.info.splits and file_format != tfds.core.FileFormat.TFRECORD:
    raise ValueError(
      f"{builder.data_dir} is in the format {file_format}, expected tfrecord. Choose "
      "another directory."
    )


def _keep_other_splits(
  final: tfds.core.DatasetBuilder, staged: tfds.core.DatasetBuilder
) -> None:
  """Copies the existing splits that `staged` does not have."""
  old_splits = [s for n, s in final.info.splits.items() if n not in staged.info.splits]
  for split in old_splits:
    for path in split.filepaths:
      shutil.copy2(path, staged.data_dir)
  infos = [*old_splits, *staged.info.splits.values()]
  staged.info.set_splits(tfds.core.splits.SplitDict(infos))
  staged.info.write_to_directory(staged.data_dir)


@contextlib.contextmanager
def _staging(tfds_data_dir: str) -> Iterator[str]:
  """Creates a hidden directory on the same disk, and removes it at the end."""
  os.makedirs(tfds_data_dir, exist_ok=True)
  directory = tempfile.mkdtemp(prefix=".incomplete-", dir=tfds_data_dir)
  try:
    yield directory
  finally:
    shutil.rmtree(directory)


def _replace(staged: str, final: str) -> None:
  """Replaces the final directory by the staged directory."""
  previous = _previous(final)
  os.makedirs(os.path.dirname(final), exist_ok=True)
  if os.path.exists(final):
    os.rename(final, previous)
  os.rename(staged, final)
  shutil.rmtree(previous, ignore_errors=True)


def _recover(final: str) -> None:
  """Undoes a replacement that was killed between the two renames."""
  previous = _previous(final)
  if os.path.exists(previous):
    if os.path.exists(final):
      shutil.rmtree(previous)
    else:
      os.rename(previous, final)


def _previous(final: str) -> str:
  return os.path.join(os.path.dirname(final), f".previous-{os.path.basename(final)}")
