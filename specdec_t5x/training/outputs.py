"""Decoding a task's examples: metrics of a split, and data for distillation.

Shapes: R rows, E encoder length, T output length.
"""

import itertools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import seqio
from etils import epath

from specdec_t5x.data import reading
from specdec_t5x.training.batches import TaskData, get_task, target_vocabulary
from specdec_t5x.training.progress import Progress

# (params, inputs [R, E], number of the batch) -> tokens [R, T], zero-padded.
DecodeFn = Callable[[Any, np.ndarray, int], np.ndarray]
Output = tuple[Mapping[str, Any], np.ndarray]


def decode_split(
  data: TaskData,
  decode: DecodeFn,
  params: Any,
  limit: int | None = None,
  first: int = 0,
) -> Iterator[Output]:
  """Yields the examples of `data.split` in order, each with its decoded tokens [T].

  Args:
    data: which examples; inputs are cut to their length, and decoded a batch at once.
    decode: decodes a batch.
    params: what it decodes with.
    limit: decode only so many; all where None.
    first: begin behind so many, whole batches, which count as decoded.
  """
  length, size = data.feature_lengths["inputs"], data.batch_size
  # Only inputs are cut to a length: a reference is read as text.
  dataset = get_task(data.task).get_dataset(
    {"inputs": length, "targets": None}, data.split, use_cached=False, shuffle=False
  )
  examples = itertools.islice(reading.rows(dataset), first, limit)
  for number in itertools.count(first // size):
    batch = list(itertools.islice(examples, size))
    if not batch:
      return
    inputs = np.zeros((size, length), np.int32)
    for row, example in zip(inputs, batch, strict=False):
      row[: len(example["inputs"])] = example["inputs"]
    # A half-filled batch repeats its first input: no second shape to compile, and no
    # empty row that decodes to the full length.
    inputs[len(batch) :] = inputs[0]
    yield from zip(batch, np.asarray(decode(params, inputs, number)), strict=False)


def check_metrics(task: str) -> None:
  """Raises a ValueError where the task has no metric of decoded text."""
  source = get_task(task)
  if not isinstance(source, seqio.Task) or not source.predict_metric_fns:
    raise ValueError(
      f"Task {task!r} has no metric function (BLEU, ROUGE), so METRIC_PERIOD must be "
      "0. Registered with a target file, or as one task instead of a mixture, it has."
    )


def text_metrics(task: str, outputs: Iterator[Output]) -> dict[str, float]:
  """Returns the task's metrics (BLEU, ROUGE) of decoded outputs."""
  source = get_task(task)
  vocabulary = target_vocabulary(task)
  finish, references, predictions = source.postprocess_fn, [], []
  for example, tokens in outputs:
    reference = example["targets_pretokenized"].decode()
    prediction = to_text(vocabulary, tokens)
    references.append(finish(reference, example=example, is_target=True))
    predictions.append(finish(prediction, example=example, is_target=False))
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
  """Writes decoded outputs as training examples, and counts them.

  `data.tasks.from_records` reads them with source_field='inputs',
  target_field='targets' and prefix='' (the inputs hold the task's prefix). An output
  that did not end in the room it had is left out: a student that learned from it would
  learn to stop in the middle. What a killed run wrote with the same settings is kept.

  Args:
    path: the .jsonl file; it appears when it is whole.
    data: where the examples come from.
    outputs: from how many are decoded already to the rest, as of `decode_split`.
    total: how many there are, for the progress line; None where nobody knows.
    settings: what the outputs follow from.
    end_ids: the tokens that end an output, which are not in its text.
  """
  vocabulary = target_vocabulary(data.task)
  final = epath.Path(path)
  mark = zlib.crc32(settings.encode())
  partial = final.with_name(f"{final.name}.{mark:08x}.partial")
  kept, first = _kept(partial, data.batch_size)
  counts = {"written": len(kept), "unfinished": first - len(kept)}
  with partial.open("w") as file, Progress(total, first, unit="example") as progress:
    file.writelines(kept)
    for number, (example, tokens) in enumerate(outputs(first), first + 1):
      progress.after(number)
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
      f"None of {counts['unfinished']} outputs of task {data.task!r} ended within "
      "the length that TASK_FEATURE_LENGTHS gives 'targets', so there is nothing to "
      "learn from. Raise it, and check that the target is trained for this task."
    )
  partial.replace(final)
  return counts


def _kept(partial: epath.Path, batch_size: int) -> tuple[list[str], int]:
  """Returns the lines of the whole batches that a killed run wrote, and their size."""
  text = partial.read_text() if partial.exists() else ""
  lines = [f"{line}\n" for line in text.split("\n")[:-1]]  # The last one may be cut.
  numbers = [json.loads(line)["number"] for line in lines]
  done = max(numbers, default=0) // batch_size * batch_size
  return [line for line, n in zip(lines, numbers, strict=True) if n <= done], done


def to_text(vocabulary: seqio.Vocabulary, tokens: np.ndarray) -> str:
  """Returns the text before the end of sequence."""
  return vocabulary.decode([int(token) for token in tokens])
