"""The record, in a draft's checkpoint, of the examples that the draft has learned from.

A draft that has learned from samples depends on the random numbers of the samples. If a
run drew the same random numbers again, proposals would depend on the numbers that
verify the proposals, and outputs would not have the target's distribution
(docs/math.md, "A draft that learns while it serves").
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence

from etils import epath

from specdec_t5x.t5x_bridge import examples

RECORD = "learned_from.json"


@dataclasses.dataclass(frozen=True)
class Chunk:
  """Examples that a draft served, and then learned from.

  Attributes:
    seed: seed of the samples; None for greedy decoding, without random numbers.
    task: number of the task in `examples.EXAMPLE`.
    places: places in the task of the first and the last example, and the step between
      neighbours.
  """

  seed: int | None
  task: int
  places: Sequence[int]


def repeated(chunks: Iterable[Chunk], model, provider) -> list[Chunk]:
  """Returns the chunks that share random numbers with the command's run.

  Args:
    chunks: chunks that a draft has learned from.
    model: the run's model.
    provider: the run's task or mixture, of any length.
  """
  if model.sampling.greedy:
    return []
  tasks = set(map(examples.number_of, examples.drawn_names(provider)))
  shard = examples.shard_of_command()
  run_places = range(shard.index, sys.maxsize, shard.num_shards)

  def is_repeated(chunk):
    first, last, step = chunk.places
    is_same = chunk.seed == model.seed and chunk.task in tasks
    return is_same and any(x in run_places for x in range(first, last + 1, step))

  return list(filter(is_repeated, chunks))


def read(checkpoint: epath.PathLike | None) -> tuple[Chunk, ...] | None:
  """Returns the chunks that a checkpoint has learned from, None without a record.

  Raises:
    ValueError: if the record can't be read.
  """
  path = epath.Path(checkpoint or "") / RECORD
  if not (checkpoint and path.exists()):
    return None
  try:
    return tuple(Chunk(**entry) for entry in json.loads(path.read_text()))
  except (ValueError, TypeError, RecursionError) as error:
    raise ValueError(
      f"{path} is damaged: expected a list of learned samples ({error}). Take another "
      "checkpoint, or copy the checkpoint again."
    ) from error


def write(checkpoint: epath.PathLike, chunks: Sequence[Chunk]) -> None:
  """Writes the record of the chunks that a checkpoint has learned from."""
  text = json.dumps([dataclasses.asdict(chunk) for chunk in chunks])
  (epath.Path(checkpoint) / RECORD).write_text(text + "\n")
