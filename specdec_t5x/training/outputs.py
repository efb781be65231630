"""Decodes a task's examples, for metrics of a split and for distillation data.

Shapes: R rows, E encoder length, T output length.
"""

import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
from etils import epath
from tqdm import tqdm

from specdec_t5x.training.batches import TaskData, get_task, rows_of, target_vocabulary

# Maps (params, inputs [R, E], number of the batch) to tokens [R, T], zero-padded.
DecodeFn = Callable[[Any, np.ndarray, int], np.ndarray]
Output = tuple[Mapping[str, Any], np.ndarray]


def decode_split(
  data: TaskData,
  decode: DecodeFn,
  params: Any,
  limit: int | None = None,
  first: int = 0,
) -> Iterator[Output]:
  """Yields (example, decoded tokens [T]) of `data.split`, in order.

  Args:
    data: the examples and the batch size; inputs are truncated to the inputs' length.
    decode: decodes a batch.
    params: parameters for `decode`.
    limit: maximal number of examples, including the first `first`; None means all.
    first: number of examples to skip, a multiple of the batch size.
  """
  length = data.feature_lengths["inputs"]
  size = data.batch_size
  # Targets are not truncated, because metrics use the references' text.
  dataset = get_task(data.task).get_dataset(
    {"inputs": length, "targets": None}, data.split, use_cached=False, shuffle=False
  )
  examples = itertools.islice(rows_of(dataset), first, limit)
  for number in itertools.count(first // size):
    batch = list(itertools.islice(examples, size))
    if not batch:
      return
    inputs = np.zeros((size, length), np.int32)
    for row, example in zip(inputs, batch, strict=False):
      row[: len(example["inputs"])] = example["inputs"]
    # A half-filled batch repeats the first input: all batches have one compiled shape,
    # and no empty row decodes to the full length.
    inputs[len(batch) :] = inputs[0]
    yield from zip(batch, np.asarray(decode(params, inputs, number)), strict=False)


def check_metrics(task: str) -> None:
  """Raises a ValueError if the task has no metric of decoded text."""
  source = get_task(task)
  if not isinstance(source, seqio.Task) or not source.predict_metric_fns:
    raise ValueError(
      f"Task {task!r} has no metric function (BLEU, ROUGE), so METRIC_PERIOD must be "
      "0. To get a metric, register the task with a target file, or use a task instead "
      "of a mixture."
    )


def text_metrics(task: str, outputs: Iterator[Output]) -> dict[str, float]:
  """Computes the task's metrics (BLEU, ROUGE) of decoded outputs."""
  source = get_task(task)
  vocabulary = target_vocabulary(task)
  postprocess = source.postprocess_fn
  references = []
  predictions = []
  for example, tokens in outputs:
    reference = example["targets_pretokenized"].decode()
    prediction = to_text(vocabulary, tokens)
    references.append(postprocess(reference, example=example, is_target=True))
    predictions.append(postprocess(prediction, example=example, is_target=False))
  return {
    name: float(value)
    for metric in source.predict_metric_fns
    for name, value in metric(references, predictions).items()
  }


def write_decoded(
  path: str,
  data: TaskData,
  outputs: Callable[[int], Iterator[Output]],
  total: int | None,
  settings: str,
  end_ids: Sequence[int],
) -> dict[str, int]:
  """Writes decoded outputs as training examples, and returns the numbers of examples.

  `data.tasks.from_records` reads the file with source_field='inputs',
  target_field='targets' and prefix='' (the inputs include the task's prefix). Outputs
  without an end token are omitted: a student would learn to stop in the middle. Lines
  that a killed run wrote with the same settings are kept.

  Args:
    path: path of the .jsonl file, which appears only when complete.
    data: the task and the batch size.
    outputs: maps the number of decoded examples to the remaining outputs, as in
      `decode_split`.
    total: number of examples, for the progress line; None if unknown.
    settings: the settings that determine the outputs, as text.
    end_ids: tokens that end an output; the text excludes the end token.
  """
  vocabulary = target_vocabulary(data.task)
  final = epath.Path(path)
  mark = zlib.crc32(settings.encode())
  partial = final.with_name(f"{final.name}.{mark:08x}.partial")
  # A killed run's lines of complete batches are kept. The last line may be cut.
  text = partial.read_text() if partial.exists() else ""
  lines = [f"{line}\n" for line in text.split("\n")[:-1]]
  numbers = [json.loads(line)["number"] for line in lines]
  first = max(numbers, default=0) // data.batch_size * data.batch_size
  old_lines = [line for line, n in zip(lines, numbers, strict=True) if n <= first]
  counts = {"written": len(old_lines), "unfinished": first - len(old_lines)}
  progress = progress_bar(total, first, "example")
  with partial.open("w") as file, progress:
    file.writelines(old_lines)
    for number, (example, tokens) in enumerate(outputs(first), first + 1):
      progress.update()
      is_end = np.isin(tokens, end_ids)
      if not is_end.any():
        counts["unfinished"] += 1
        continue
      inputs = example["inputs_pretokenized"].decode()
      text = to_text(vocabulary, tokens[: is_end.argmax()])
      record = {"number": number, "inputs": inputs, "targets": text}
      file.write(json.dumps(record, ensure_ascii=False) + "\n")
      counts["written"] += 1
  if not counts["written"]:
    partial.unlink()
    raise ValueError(
      f"Training needs finished outputs, but the {counts['unfinished']} outputs of "
      f"task {data.task!r} did not end within the length of 'targets' in "
      "TASK_FEATURE_LENGTHS. Raise the length. The target must be trained for the task."
    )
  partial.replace(final)
  return counts


def to_text(vocabulary: seqio.Vocabulary, tokens: np.ndarray) -> str:
  """Returns the text of tokens, up to the first EOS."""
  return vocabulary.decode([int(token) for token in tokens])


def progress_bar(total: int | None, first: int, unit: str) -> tqdm:
  """Returns a progress bar, which a file of logs gets every 15 seconds."""
  seconds = 0.1 if sys.stderr.isatty() else 15.0
  return tqdm(total=total, initial=first, unit=unit, mininterval=seconds)
