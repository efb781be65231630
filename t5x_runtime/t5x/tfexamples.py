"""Registers a task over files of TFExamples."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence

from etils import epy
from google.protobuf import message

with epy.lazy_imports():
  import seqio
  import tensorflow as tf

_FILE_TYPES = ("tfrecord",)


def create_task_from_tfexample_file(
  paths: Sequence[str],
  file_type: str,
  inputs_key: str,
  targets_key: str | None,
  features: Mapping[str, seqio.Feature],
  task_id: str | None = None,
) -> str:
  """Registers a task over files of TFExamples with the split 'infer'.

  Returns the task's name.

  Args:
    paths: paths, or patterns of paths.
    file_type: 'tfrecord'.
    inputs_key: the feature with the text of inputs.
    targets_key: the feature with the text of targets; None without targets.
    features: the task's features 'inputs' and 'targets'.
    task_id: suffix of the name; None means a hash of the paths and keys.

  Raises:
    ValueError: if no file matches, a file can't be read, or a file's first example
      lacks a feature.
  """
  if file_type not in _FILE_TYPES:
    raise ValueError(
      f"TF_EXAMPLE_FILE_TYPE: expected one of {[*_FILE_TYPES]}, got {file_type!r}. "
      "Convert the file."
    )
  if isinstance(paths, str) or not (files := tf.io.gfile.glob([*paths])):
    raise ValueError(
      f"TF_EXAMPLE_FILE_PATHS: expected a list of existing files, got {paths!r}. Check "
      "the paths."
    )
  keys = (inputs_key, targets_key)
  _check_features(files, {key for key in keys if key})
  names = ":".join(str(part or "") for part in (*paths, *keys))
  name = f"infer_{task_id or hashlib.md5(names.encode()).hexdigest()[:10]}"
  if name not in seqio.TaskRegistry.names():
    text = tf.io.FixedLenFeature([], tf.string)
    key_map = {"inputs": inputs_key, "targets": targets_key}
    seqio.TaskRegistry.add(
      name,
      source=seqio.TFExampleDataSource(
        {"infer": files}, {key: text for key in keys if key}, tf.data.TFRecordDataset
      ),
      preprocessors=[
        functools.partial(seqio.preprocessors.rekey, key_map=key_map),
        seqio.preprocessors.tokenize_and_append_eos,
      ],
      output_features=dict(features),
    )
  return name


def _check_features(files, needed: set[str]) -> None:
  """Raises a ValueError if a file can't be read, or an example lacks features."""
  for path in files:
    try:
      serialized = [x.numpy() for x in tf.data.TFRecordDataset(path).take(1)]
      names = set(tf.train.Example.FromString(serialized[0]).features.feature)
    except (tf.errors.OpError, message.DecodeError, IndexError) as error:
      raise ValueError(
        f"TF_EXAMPLE_FILE_PATHS: {path} has no complete TFExample ({error}). Expected "
        "a file written by tf.io.TFRecordWriter. Write the file again."
      ) from error
    if missing := needed - names:
      raise ValueError(
        f"TF_EXAMPLE_FILE_PATHS: {path}: examples have the features {sorted(names)}, "
        f"but lack {sorted(missing)}. Set create_task_from_tfexample_file.inputs_key "
        "and .targets_key to the names of your features."
      )
