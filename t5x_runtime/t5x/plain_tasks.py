"""Tasks whose texts are in memory, which `t5x.infer` reads without TensorFlow.

seqio imports TensorFlow, and that takes longer than all else that a run does before it
decodes. A package that registers a task of texts with seqio may register it here, too:
`t5x.infer` then reads it from here. Registering with seqio can be deferred until seqio
is needed.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_tasks: dict[str, "PlainTask"] = {}
_deferred: dict[str, Callable[[], Any]] = {}
_may_defer = False


@dataclasses.dataclass(frozen=True)
class PlainFeature:
  """What is said of a task's inputs or targets, as seqio.Feature does.

  Attributes:
    vocabulary: with `encode`, `decode` and `eos_id`, as seqio's.
    add_eos: whether its tokens end with EOS.
    frame: returns the tokens in front of each example's and those behind them, in
      place of EOS; None where EOS is all.
  """

  vocabulary: Any
  add_eos: bool = True
  frame: Callable[[], tuple[Sequence[int], Sequence[int]]] | None = None

  def encode(self, text: str, length: int) -> list[int]:
    """Returns a text's tokens, cut so that all those around them have room."""
    if self.frame is not None:
      prefix, suffix = self.frame()
    else:
      prefix, suffix = (), (self.vocabulary.eos_id,) if self.add_eos else ()
    room = max(0, length - len(prefix) - len(suffix))
    return [*prefix, *self.vocabulary.encode(text)[:room], *suffix][:length]


@dataclasses.dataclass(frozen=True, eq=False)
class PlainTask:
  """A task of texts, with what `t5x.infer` uses of seqio.Task.

  Attributes:
    name: of the task.
    output_features: of "inputs" and "targets".
    splits: the names of its splits.
    count: from a split to the number of its examples.
    read: from a split to its texts: inputs and targets of each example, in order.
  """

  name: str
  output_features: Mapping[str, PlainFeature]
  splits: tuple[str, ...]
  count: Callable[[str], int]
  read: Callable[[str], Iterator[tuple[str, str]]]

  def num_input_examples(self, split: str) -> int:
    """Returns the number of examples of a split."""
    return self.count(split)

  def example(
    self, texts: tuple[str, str], lengths: Mapping[str, int]
  ) -> dict[str, Any]:
    """Returns texts with their tokens, as a seqio task does.

    Tokens are cut to the lengths; those around them are not cut off.
    """
    found = {}
    for name, text in zip(("inputs", "targets"), texts, strict=True):
      tokens = self.output_features[name].encode(text, lengths[name])
      found[f"{name}_pretokenized"] = text.encode("utf-8")
      found[name] = np.array(tokens, np.int32)
    return found


class Rows:
  """A list of examples, with what is used of a tf.data.Dataset."""

  def __init__(self, rows: Iterable[Any]):
    self._rows = list(rows)

  def as_numpy_iterator(self) -> Iterator[Any]:
    """Returns an iterator of the examples."""
    return iter(self._rows)

  def enumerate(self) -> "Rows":
    """Returns the examples with their numbers."""
    return Rows((np.int64(number), row) for number, row in enumerate(self._rows))


def register(task: PlainTask) -> None:
  """Registers a task; one of the same name is replaced."""
  _tasks[task.name] = task


def allow_deferring() -> None:
  """Lets packages defer what needs seqio: `t5x.infer` does, as a command."""
  global _may_defer
  _may_defer = True


def is_deferring() -> bool:
  """Returns whether tasks are to be deferred: where that is allowed, before seqio."""
  return _may_defer and not is_seqio_loaded()


def defer(name: str, add: Callable[[], Any]) -> None:
  """Adds a task to seqio's registry when seqio is needed.

  Args:
    name: of the task.
    add: adds it.
  """
  _deferred[name] = add


def find(name: Any) -> PlainTask | None:
  """Returns the task of a name; None where seqio alone may know one."""
  return _tasks.get(name) if isinstance(name, str) else None


def is_seqio_loaded() -> bool:
  """Returns whether seqio, and TensorFlow with it, has been imported."""
  return "seqio" in sys.modules


def add_deferred() -> None:
  """Adds all deferred tasks to seqio's registry."""
  while _deferred:
    _, add = _deferred.popitem()
    add()


def known_names() -> list[str]:
  """Returns the names of all tasks and mixtures, without importing seqio."""
  names = {*_tasks, *_deferred}
  if is_seqio_loaded():
    import seqio

    names |= {*seqio.TaskRegistry.names(), *seqio.MixtureRegistry.names()}
  return sorted(names)
