"""What a draft has learned from, kept in its checkpoint.

A draft that has learned from samples knows of the random numbers that made them. A run
that drew the same ones again would verify proposals by numbers that these depend on, so
outputs would not have the target's distribution (docs/math.md, "A draft that learns
while it serves").
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence

import seqio
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
  def all_places(self) -> range:
    """The examples' places in the task."""
    first, last, step = self.places
    return range(first, last + 1, step)

  def shares_draws_with(self, other: "Chunk") -> bool:
    """Whether an example of both was drawn by the same random numbers."""
    drawn_by = lambda chunk: (chunk.seed, chunk.task)
    return (
      self.seed is not None
      and drawn_by(self) == drawn_by(other)
      and not set(self.all_places).isdisjoint(other.all_places)
    )


@dataclasses.dataclass(frozen=True)
class Draws:
  """The random numbers of a run under T5X.

  Attributes:
    seed: SEED; None of a greedy run, which draws nothing.
    tasks: their numbers in `examples.EXAMPLE`.
    shard: which examples of each.
  """

  seed: int | None
  tasks: tuple[int, ...]
  shard: seqio.ShardInfo

  @classmethod
  def of_run(cls, model, provider) -> "Draws":
    """Returns those of the command's model on a task or mixture."""
    return cls(
      None if model.sampling.greedy else model.seed,
      tuple(map(examples.number_of, examples.drawn_names(provider))),
      examples.shard_of_command(),
    )

  def among(self, chunks: Iterable[Chunk]) -> list[Chunk]:
    """Returns the chunks that were drawn by random numbers of these."""
    index, count = self.shard.index, self.shard.num_shards
    is_ours = lambda places: any(place % count == index for place in places)
    return [
      chunk
      for chunk in chunks
      if self.seed is not None
      and (chunk.seed == self.seed and chunk.task in self.tasks)
      and is_ours(chunk.all_places)
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
