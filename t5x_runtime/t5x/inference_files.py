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
# (predictions, auxiliary values): one entry an example, in the input's order.
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
  """Writes one JSON line an example: its inputs, the prediction or score, and aux.

  Args:
    path: of the file.
    inferences: predictions (token ids, or scores in mode score) and auxiliary values.
    task_ds: the examples, in the same order.
    mode: predict, score or predict_with_aux.
    vocabulary: turns token ids into text; needed but in mode score.
    json_encoder_cls: for values that json does not know; None is seqio's.
    include_all_inputs: whether all features are written, not the texts alone.
    input_fields_to_include: which features are written, with their texts.
    output_ids: whether token ids are written beside the text.

  Raises:
    ValueError: where the mode is unknown, the vocabulary is missing, or both ways to
      choose input fields are used.
  """
  if mode not in MODES:
    raise ValueError(f"mode must be one of {MODES}, got {mode!r}.")
  if mode != "score" and vocabulary is None:
    raise ValueError(f"Mode {mode} writes text and needs a vocabulary; got None.")
  if include_all_inputs and input_fields_to_include is not None:
    raise ValueError(
      "Set include_all_inputs or input_fields_to_include, not both of them."
    )
  predictions, aux = inferences
  is_column = lambda value: isinstance(value, np.ndarray | list)
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
        row = jax.tree.map(lambda column, i=i: column[i], aux, is_leaf=is_column)
        record["aux"] = jax.tree.map(plain, row)
      file.write(_dumped(record, json_encoder_cls) + "\n")


def _dumped(record, encoder: type[json.JSONEncoder] | None) -> str:
  if encoder is not None:
    return json.dumps(record, cls=encoder)
  # seqio's is made for a value that json does not know alone.
  return json.dumps(
    record, default=lambda value: seqio.TensorAndNumpyEncoder().default(value)
  )


def _chosen(example, all_of_them, names):
  if all_of_them:
    return example
  if names is None:
    return {k: v for k, v in example.items() if k.endswith("_pretokenized")}
  wanted = {*names, *(f"{name}_pretokenized" for name in names)}
  return {k: v for k, v in example.items() if k in wanted}


def plain(value):
  """Returns what json can write; arrays become lists, bytes text."""
  if isinstance(value, bytes):
    return value.decode("utf-8")
  if isinstance(value, np.ndarray | jax.Array):
    value = np.asarray(value)
    # ml_dtypes' scalars (bfloat16) have no JSON form of their own.
    value = value.astype(np.float32) if value.dtype == jax.numpy.bfloat16 else value
    return value.tolist()
  if isinstance(value, np.generic):
    return value.item()
  return value


def _decode(vocabulary, predictions):
  """Returns the texts of all predictions, or of all decodes of each."""
  rows = [np.asarray(tokens) for tokens in predictions]
  of_one_shape = len({row.shape for row in rows}) == 1
  if of_one_shape and isinstance(vocabulary, seqio.SentencePieceVocabulary):
    # In one call: 20 take TensorFlow longer than their decoding may have taken.
    tokens = np.stack(rows)
    texts = vocabulary.decode_tf(tokens.reshape(-1, tokens.shape[-1])).numpy()
    rows = texts.reshape(tokens.shape[:-1])
  else:
    rows = [vocabulary.decode_tf(row).numpy() for row in rows]
  return [plain(row) for row in rows]


def _decode_plainly(vocabulary, predictions):
  """Returns what `_decode` does, without TensorFlow."""
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
  """Joins the chunks of a finished task to one file, in order.

  Args:
    output_dir: where the result goes.
    output_fname: its name.
    tmp_dir: where the chunks are, `<output_fname>-chunk00000` and so on.
    step: the checkpoint's; unused.

  Raises:
    ValueError: where there are no chunks, or one is missing.
  """
  del step
  pattern = f"{glob.escape(output_fname)}-chunk?????"
  chunks = files_named(epath.Path(tmp_dir), pattern)
  if not chunks:
    raise ValueError(
      f"No results in {tmp_dir}: the input had no examples. Check the task's split and "
      "num_shards."
    )
  if int(chunks[-1].name[-5:]) + 1 != len(chunks):
    raise ValueError(
      f"{tmp_dir} holds {len(chunks)} chunks, but the last one is {chunks[-1].name}: "
      "some are missing. Delete the directory and run again."
    )
  path = epath.Path(output_dir) / output_fname
  partial = path.with_name(f"{path.name}.partial")
  with whole_file(path, partial), partial.open("wb") as merged:
    for chunk in chunks:
      with chunk.open("rb") as part:
        shutil.copyfileobj(part, merged)
  logging.info("Results written to %s.", path)
