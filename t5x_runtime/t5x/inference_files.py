"""The files of an inference run: JSON lines, chunks, and the merged result."""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import seqio
from absl import logging
from etils import epath

MODES = ("predict", "score", "predict_with_aux")
# (predictions, auxiliary values): one entry an example, in the input's order.
Inferences = tuple[Sequence[Any], Mapping[str, Any]]


def write_inferences_to_file(
  path: str,
  inferences: Inferences,
  task_ds,
  mode: str,
  vocabulary: seqio.Vocabulary | None = None,
  json_encoder_cls: type[json.JSONEncoder] = seqio.TensorAndNumpyEncoder,
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
    json_encoder_cls: for values that json does not know.
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
  with epath.Path(path).open("w") as file:
    for i, example in enumerate(task_ds.as_numpy_iterator()):
      fields = _chosen(example, include_all_inputs, input_fields_to_include)
      record = {"inputs": {name: _plain(value) for name, value in fields.items()}}
      if mode == "score":
        record["score"] = _plain(predictions[i])
      else:
        record["prediction"] = _decode(vocabulary, predictions[i])
        if output_ids:
          record["prediction_tokens"] = _until_padding(_plain(predictions[i]))
      if mode == "predict_with_aux" or (mode == "score" and aux):
        row = jax.tree.map(lambda column, i=i: column[i], aux, is_leaf=is_column)
        record["aux"] = jax.tree.map(_plain, row)
      file.write(json.dumps(record, cls=json_encoder_cls) + "\n")


def _chosen(example, all_of_them, names):
  if all_of_them:
    return example
  if names is None:
    return {k: v for k, v in example.items() if k.endswith("_pretokenized")}
  wanted = {*names, *(f"{name}_pretokenized" for name in names)}
  return {k: v for k, v in example.items() if k in wanted}


def _plain(value):
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


def _decode(vocabulary, tokens):
  text = vocabulary.decode_tf(np.asarray(tokens)).numpy()
  return _plain(text)


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
  chunks = sorted(epath.Path(tmp_dir).glob(f"{output_fname}-chunk?????"))
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
  with partial.open("wb") as merged:
    for chunk in chunks:
      with chunk.open("rb") as part:
        shutil.copyfileobj(part, merged)
  partial.replace(path)
  logging.info("Results written to %s.", path)


class ChunkFiles:
  """The chunks of one task's run: a chunk counts once its marker is there."""

  def __init__(self, directory: str, output_fname: str, settings: Mapping[str, Any]):
    """Creates it; nothing is written yet.

    Args:
      directory: of the chunks.
      output_fname: name of the merged file.
      settings: what must stay the same when a run is resumed.
    """
    self.directory = epath.Path(directory)
    self._fname = output_fname
    self._settings = json.loads(json.dumps(settings))

  def path(self, chunk: int) -> epath.Path:
    """Returns where the chunk goes."""
    return self.directory / f"{self._fname}-chunk{chunk:05}"

  def marker(self, chunk: int) -> epath.Path:
    """Returns the file that says the chunk is whole."""
    return self.directory / f"{self._fname}-chunk{chunk:05}.COMPLETED"

  def start(self) -> int:
    """Prepares the directory; returns the first chunk that is not done.

    Raises:
      ValueError: where the chunks there were made under other settings.
    """
    record = self.directory / f"{self._fname}-settings.json"
    if record.exists():
      before = json.loads(record.read_text())
      if before != self._settings:
        raise ValueError(
          f"{self.directory} holds chunks of an unfinished run with other settings: "
          f"{_difference(before, self._settings)}. Delete the directory to start over, "
          "or set them back to resume."
        )
    done = self.count_completed()
    if jax.process_index() == 0 and not record.exists():
      self.directory.mkdir(parents=True, exist_ok=True)
      partial = record.with_name(f".partial-{os.getpid()}-settings")
      partial.write_text(json.dumps(self._settings))
      partial.replace(record)
    return done

  def count_completed(self) -> int:
    """Returns how many leading chunks are done; a run goes on after them."""
    count = 0
    while self.marker(count).exists() and self.path(count).exists():
      count += 1
    return count

  def remove(self) -> None:
    """Removes what belongs to this run; another mode's chunks stay."""
    for file in self.directory.iterdir():
      if file.name.startswith((f"{self._fname}-", ".partial-")):
        file.unlink()
    if not any(self.directory.iterdir()):
      self.directory.rmdir()

  def write(self, chunk: int, write_fn, *args) -> None:
    """Writes a chunk by `write_fn(path, *args)`; a kill leaves all of it or nothing."""
    partial = self.directory / f".partial-{os.getpid()}-{chunk:05}"
    write_fn(str(partial), *args)
    partial.replace(self.path(chunk))
    self.marker(chunk).write_text("")


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
  names = [name for name in now if before.get(name) != now[name]]
  return "; ".join(f"{name} was {before.get(name)}, is {now[name]}" for name in names)
