"""The files of an inference run: JSON lines, and the merged result."""

from __future__ import annotations

import glob
import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from etils import epath, epy

from t5x.inference_safety import files_named, whole_file
from t5x.plain_tasks import Rows

with epy.lazy_imports():
  import seqio

MODES = ("predict", "score", "predict_with_aux")
# (predictions, auxiliary values), with one entry per example, in the input's order.
Inferences = tuple[Sequence[Any], Mapping[str, Any]]


def write_inferences_to_file(
  path: str,
  inferences: Inferences,
  task_ds,
  mode: str,
  vocabulary: seqio.Vocabulary | None = None,
  json_encoder_cls: type[json.JSONEncoder] | None = None,
  include_all_inputs: bool = False,
  input_fields_to_include: Sequence[str] | None = None,
  output_ids: bool = False,
) -> None:
  """Writes one JSON line per example: inputs, the prediction or score, and aux.

  Args:
    path: path of the file.
    inferences: predictions (token ids, or scores in mode score) and auxiliary values.
    task_ds: the examples, in the same order.
    mode: predict, score or predict_with_aux.
    vocabulary: decodes token ids; required except in mode score.
    json_encoder_cls: encoder of values unknown to json; None means seqio's.
    include_all_inputs: whether to write all features instead of only the texts.
    input_fields_to_include: names of features to write, together with the texts of
      these features.
    output_ids: whether to write token ids beside the text.

  Raises:
    ValueError: if the mode is unknown, the vocabulary is missing, or both arguments
      about input fields are set.
  """
  if mode not in MODES:
    raise ValueError(f"mode must be one of {MODES}, got {mode!r}.")
  if mode != "score" and vocabulary is None:
    raise ValueError(
      f"Mode {mode} writes text and needs a vocabulary, got None. Pass a vocabulary."
    )
  if include_all_inputs and input_fields_to_include is not None:
    raise ValueError(
      "At most one of include_all_inputs and input_fields_to_include may be set, got "
      "two. Leave one out."
    )
  predictions, aux = inferences
  decode = _decode_plainly if isinstance(task_ds, Rows) else _decode
  texts = None if mode == "score" else decode(vocabulary, predictions)
  with epath.Path(path).open("w") as file:
    for i, example in enumerate(task_ds.as_numpy_iterator()):
      fields = _chosen(example, include_all_inputs, input_fields_to_include)
      record = {"inputs": {name: plain(value) for name, value in fields.items()}}
      if mode == "score":
        record["score"] = plain(predictions[i])
      else:
        record["prediction"] = texts[i]
        if output_ids:
          record["prediction_tokens"] = _until_padding(plain(predictions[i]))
      if mode == "predict_with_aux" or (mode == "score" and aux):
        row = jax.tree.map(lambda column, i=i: column[i], aux, is_leaf=_is_column)
        record["aux"] = jax.tree.map(plain, row)
      file.write(_dumped(record, json_encoder_cls) + "\n")


def _is_column(value) -> bool:
  return isinstance(value, np.ndarray | list)


def _dumped(record, encoder: type[json.JSONEncoder] | None) -> str:
  if encoder is not None:
    return json.dumps(record, cls=encoder)
  # The lambda imports seqio only for a value that json does not know.
  return json.dumps(
    record, default=lambda value: seqio.TensorAndNumpyEncoder().default(value)
  )


def _chosen(example, all_of_them, names):
  if all_of_them:
    return example
  if names is None:
    return {k: v for k, v in example.items() if k.endswith("_pretokenized")}
  chosen = {*names, *(f"{name}_pretokenized" for name in names)}
  return {k: v for k, v in example.items() if k in chosen}


def plain(value):
  """Converts a value for json: arrays become lists, and bytes become text."""
  if isinstance(value, bytes):
    return value.decode("utf-8")
  if isinstance(value, np.ndarray | jax.Array):
    value = np.asarray(value)
    # json can't write ml_dtypes' scalars (bfloat16).
    value = value.astype(np.float32) if value.dtype == jax.numpy.bfloat16 else value
    return value.tolist()
  if isinstance(value, np.generic):
    return value.item()
  return value


def _decode(vocabulary, predictions):
  """Returns the text of each prediction, or the texts of each prediction's decodes."""
  rows = [np.asarray(tokens) for tokens in predictions]
  has_one_shape = len({row.shape for row in rows}) == 1
  if has_one_shape and isinstance(vocabulary, seqio.SentencePieceVocabulary):
    # One call for all rows: 20 calls of TensorFlow may take longer than the model.
    tokens = np.stack(rows)
    texts = vocabulary.decode_tf(tokens.reshape(-1, tokens.shape[-1])).numpy()
    rows = texts.reshape(tokens.shape[:-1])
  else:
    rows = [vocabulary.decode_tf(row).numpy() for row in rows]
  return [plain(row) for row in rows]


def _decode_plainly(vocabulary, predictions):
  """Returns the same texts as `_decode`, without TensorFlow."""
  return [_texts_of(vocabulary, np.asarray(tokens)) for tokens in predictions]


def _texts_of(vocabulary, tokens):
  if tokens.ndim > 1:
    return [_texts_of(vocabulary, row) for row in tokens]
  return vocabulary.decode(tokens.tolist())


def _until_padding(tokens):
  return tokens[: tokens.index(0)] if 0 in tokens else tokens


def merge_chunks_to_file(
  output_dir: str, output_fname: str, tmp_dir: str, step: int | None
) -> None:
  """Merges the chunks of a finished task into one file, in order.

  A shard without examples gives an empty file.

  Args:
    output_dir: directory for the result.
    output_fname: name of the result.
    tmp_dir: directory of the chunks, `<output_fname>-chunk00000` and so on.
    step: step of the checkpoint, unused.

  Raises:
    ValueError: if the only shard has no chunks, or a chunk is missing.
  """
  del step
  prefix = f"{output_fname}-chunk"
  numbered = {}
  # The sorted names are not in the chunks' order: numbers have five digits or more.
  for file in files_named(epath.Path(tmp_dir), f"{glob.escape(prefix)}*"):
    number = file.name.removeprefix(prefix)
    if number.isdecimal():
      numbered[int(number)] = file
  chunks = [numbered[number] for number in sorted(numbered)]
  num_shards = output_fname.rpartition("-of-")[2]
  if not chunks and not (num_shards.isdecimal() and int(num_shards) > 1):
    raise ValueError(
      f"{tmp_dir} has no results: the input had no examples. Check the task's split."
    )
  # One of many shards may have no examples, and then writes an empty file.
  if chunks and max(numbered) + 1 != len(chunks):
    raise ValueError(
      f"{tmp_dir} holds {len(chunks)} chunks, but the last chunk is {chunks[-1].name}: "
      "chunks are missing. Delete the directory and run again."
    )
  path = epath.Path(output_dir) / output_fname
  partial = path.with_name(f"{path.name}.partial")
  with whole_file(path, partial), partial.open("wb") as merged:
    for chunk in chunks:
      with chunk.open("rb") as part:
        shutil.copyfileobj(part, merged)
  logging.info("Results written to %s.", path)
