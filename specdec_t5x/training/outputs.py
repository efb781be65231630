"""Decodes a task's inputs, for metrics of a split and for distillation data.

Shapes: N inputs of a batch, T output length.
"""

import dataclasses
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from jaxtyping import Int
from tqdm import tqdm

from specdec_t5x import api, console
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.types import EndTokens
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.network.functional import Network
from specdec_t5x.prepared import Model
from specdec_t5x.training.batches import (
  TaskData,
  check_splits,
  get_task,
  rows_of,
  target_vocabulary,
)

Example = Mapping[str, Any]
# {"number": place in the split, "inputs": text, "targets": text}. The targets of an
# output that did not end within the length are None.
Record = dict[str, Any]
# The numbers of a batch's inputs, and the outputs.
Outputs = Iterator[tuple[list[int], Int[np.ndarray, "N T"]]]


def open_target(checkpoint: str, data: TaskData) -> tuple[Model, tuple[int, ...]]:
  """Returns the target that decodes a task's inputs, and the end tokens.

  Raises:
    ValueError: if there is no target, or the target can't decode the task.
  """
  if data.is_decoder_only:
    raise ValueError(
      "TASK_FEATURE_LENGTHS must give lengths for 'inputs', 'targets', got "
      f"{dict(data.feature_lengths)}: decoding needs inputs."
    )
  target = api.load_model(checkpoint)
  target.generation.check()
  vocabulary = target_vocabulary(data.task)
  if vocabulary.vocab_size > target.network.config.vocab_size:
    raise ValueError(
      f"Task {data.task!r} has a vocabulary of {vocabulary.vocab_size} tokens, but the "
      f"target {checkpoint} has a vocabulary of {target.network.config.vocab_size} "
      "tokens. Use the target's own vocabulary."
    )
  return target, api.end_tokens(target, vocabulary)


def examples_of(data: TaskData, split: str, limit: int | None = None) -> list[Example]:
  """Returns a split's examples in order, with inputs truncated to the inputs' length.

  Args:
    data: the task and the lengths.
    split: the split.
    limit: maximal number of examples; None means all.

  Raises:
    ValueError: if the task lacks the split, or `limit` is out of range.
  """
  if limit is not None and limit < 1:
    raise ValueError(f"LIMIT must be at least 1, or None for no limit, got {limit}.")
  check_splits(data, (split,))
  # Targets are not truncated, because metrics use the references' text.
  lengths = {"inputs": data.feature_lengths["inputs"], "targets": None}
  dataset = get_task(data.task).get_dataset(
    lengths, split, use_cached=False, shuffle=False
  )
  return list(rows_of(dataset if limit is None else dataset.take(limit)))


@dataclasses.dataclass(frozen=True)
class Decoding:
  """A network that decodes a task's inputs greedily and without a draft."""

  network: Network
  params: Any
  # The task, the length of targets, and the number of rows that decode at once.
  data: TaskData
  end_ids: EndTokens  # Tokens that end an output.

  def outputs(self, examples: Sequence[Example], done: Collection[int] = ()) -> Outputs:
    """Yields the outputs of examples' inputs.

    Args:
      examples: the examples.
      done: numbers of examples with known outputs; batches of such examples are
        skipped.
    """
    results = api.decode_batches(
      Decoder(self.network),
      {"target": self.params},
      [example["inputs"].tolist() for example in examples],
      GREEDY,
      self.data.feature_lengths["targets"],
      batch_size=self.data.batch_size,
      eos_id=self.end_ids,
      done=done,
    )
    return ((numbers, np.asarray(decoded.tokens)) for numbers, decoded in results)

  def to_file(self, path: str, examples: Sequence[Example]) -> list[Record]:
    """Decodes examples into a file, and returns the records in the examples' order.

    The file has a JSON object per line, in the order of decoding. The file of a killed
    run is continued, and nothing is decoded if the file is complete.
    """
    file = epath.Path(path)
    # The last line of a killed run may be cut.
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    records = {record["number"]: record for record in map(json.loads, lines)}
    write_records(path, records.values())
    vocabulary = target_vocabulary(self.data.task)
    bar = progress_bar(len(examples), len(records), "example")
    with file.open("a") as stream, bar as progress:
      for numbers, batch in self.outputs(examples, done=records):
        for number, tokens in zip(numbers, batch, strict=True):
          is_end = np.isin(tokens, self.end_ids)
          ended = tokens[: is_end.argmax()].tolist() if is_end.any() else None
          records[number] = {
            "number": number,
            "inputs": examples[number]["inputs_pretokenized"].decode(),
            "targets": None if ended is None else vocabulary.decode(ended),
          }
        stream.writelines(_line(records[number]) for number in numbers)
        stream.flush()
        progress.update(len(numbers))
    return [records[number] for number in range(len(examples))]


def text_metrics(decoding: Decoding, examples: Sequence[Example]) -> dict[str, float]:
  """Computes the task's metrics (BLEU, ROUGE) of the outputs of examples' inputs."""
  source = get_task(decoding.data.task)
  vocabulary = target_vocabulary(decoding.data.task)
  postprocess = source.postprocess_fn
  references = []
  predictions = []
  for numbers, batch in decoding.outputs(examples):
    for number, tokens in zip(numbers, batch, strict=True):
      example = examples[number]
      reference = example["targets_pretokenized"].decode()
      prediction = vocabulary.decode(tokens.tolist())  # Up to the first EOS.
      references.append(postprocess(reference, example=example, is_target=True))
      predictions.append(postprocess(prediction, example=example, is_target=False))
  return {
    name: float(value)
    for metric in source.predict_metric_fns
    for name, value in metric(references, predictions).items()
  }


def finished(records: Sequence[Record], task: str) -> list[Record]:
  """Returns the records of outputs that have an end token.

  Other outputs are no training data: a student would learn to stop in the middle.

  Raises:
    ValueError: if no output has an end token.
  """
  ended = [record for record in records if record["targets"] is not None]
  if not ended:
    raise ValueError(
      f"Training needs finished outputs, but the {len(records)} outputs of task "
      f"{task!r} did not end within the length of 'targets' in TASK_FEATURE_LENGTHS. "
      "Raise the length. The target must be trained for the task."
    )
  if left_out := len(records) - len(ended):
    console.say(f"Outputs left out, without an end within the length: {left_out}.")
  return ended


def write_records(path: str, records: Iterable[Record]) -> None:
  """Writes records as JSON lines; the file appears only when complete.

  `data.tasks.from_records` reads the file with source_field='inputs',
  target_field='targets' and prefix='' (the inputs include the task's prefix).
  """
  final = epath.Path(path)
  partial = final.with_name(f"{final.name}.new")
  partial.write_text("".join(map(_line, records)))
  partial.replace(final)


def _line(record: Record) -> str:
  return json.dumps(record, ensure_ascii=False) + "\n"


def progress_bar(total: int | None, first: int, unit: str) -> tqdm:
  """Returns a progress bar, which a file of logs gets every 15 seconds."""
  seconds = 0.1 if sys.stderr.isatty() else 15.0
  return tqdm(total=total, initial=first, unit=unit, mininterval=seconds)
