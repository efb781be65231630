"""What a draft has learned from, kept in its checkpoint.

A draft that has learned from samples knows of the random numbers that made them. A run
that drew the same ones again would verify proposals by numbers that these depend on, so
outputs would not have the target's distribution (docs/math.md, "A draft that learns
while it serves").
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
    seed: of their samples; None where they are greedy, which draws nothing.
    task: its number in `examples.EXAMPLE`.
    places: the first and the last one's place in the task, and the step between two.
    name: of T5X's file, `<task>-<mode>.jsonl-<shard>-of-<shards>-chunk<number>`.
    results: INFER_OUTPUT_DIR as seen from the draft's directory.
  """

  seed: int | None
  task: int
  places: Sequence[int]
  name: str
  results: str

  @property
  def draws(self) -> "Draws":
    """The random numbers of their samples."""
    first, last, step = self.places
    return Draws(self.seed, (self.task,), range(first, last + 1, step))


@dataclasses.dataclass(frozen=True)
class Draws:
  """The random numbers that some examples' samples are drawn by.

  Attributes:
    seed: SEED; None where they are greedy, which draws nothing.
    tasks: their numbers in `examples.EXAMPLE`.
    places: of the examples in each task.
  """

  seed: int | None
  tasks: tuple[int, ...]
  places: range

  @classmethod
  def of_run(cls, model, provider) -> "Draws":
    """Returns those of the command's model on a task or mixture, however long."""
    shard = examples.shard_of_command()
    return cls(
      None if model.sampling.greedy else model.seed,
      tuple(map(examples.number_of, examples.drawn_names(provider))),
      range(shard.index, sys.maxsize, shard.num_shards),
    )

  def among(self, chunks: Iterable[Chunk]) -> list[Chunk]:
    """Returns the chunks that were drawn by random numbers of these."""
    return [
      chunk
      for chunk in chunks
      if self.seed is not None
      and (chunk.seed == self.seed and chunk.task in self.tasks)
      and any(place in self.places for place in chunk.draws.places)
    ]


def read(checkpoint: epath.PathLike | None) -> tuple[Chunk, ...] | None:
  """Returns what a checkpoint has learned from, None where it says nothing.

  Raises:
    ValueError: where what it says can't be read.
  """
  path = epath.Path(checkpoint or "") / RECORD
  if not (checkpoint and path.exists()):
    return None
  try:
    return tuple(Chunk(**entry) for entry in json.loads(path.read_text()))
  except (ValueError, TypeError, RecursionError) as error:
    raise ValueError(
      f"{path} is damaged: expected a list of what the draft has learned from "
      f"({error}). Take another checkpoint, or copy this one again."
    ) from error


def write(checkpoint: epath.PathLike, chunks: Sequence[Chunk]) -> None:
  """Writes what a checkpoint has learned from."""
  text = json.dumps([dataclasses.asdict(chunk) for chunk in chunks])
  (epath.Path(checkpoint) / RECORD).write_text(text + "\n")
