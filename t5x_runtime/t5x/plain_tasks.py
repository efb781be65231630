"""Tasks of texts in memory, which `t5x.infer` reads without TensorFlow.

seqio imports TensorFlow. The import takes longer than all other work of a run before
decoding. A package that registers a task of texts with seqio may also register the task
here: `t5x.infer` then reads the texts without seqio. Packages may defer the
registration with seqio until a run needs seqio.
"""

import dataclasses
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

_tasks: dict[str, "PlainTask"] = {}
_deferred: dict[str, Callable[[], Any]] = {}
_may_defer = False


@dataclasses.dataclass(frozen=True)
class PlainFeature:
  """The properties of a task's inputs or targets, like seqio.Feature."""

  vocabulary: Any  # With `encode`, `decode` and `eos_id`, like seqio's.
  add_eos: bool = True  # Whether the tokens end with EOS.
  # Returns the prefix and the suffix of each example; None means EOS alone.
  frame: Callable[[], tuple[Sequence[int], Sequence[int]]] | None = None

  def encode(self, text: str, length: int) -> list[int]:
    """Returns a text's tokens with prefix and suffix, at most `length` tokens.

    Only the text's tokens are truncated if prefix and suffix fit into `length`.
    """
    prefix = ()
    suffix = (self.vocabulary.eos_id,) if self.add_eos else ()
    if self.frame is not None:
      prefix, suffix = self.frame()
    room = max(0, length - len(prefix) - len(suffix))
    return [*prefix, *self.vocabulary.encode(text)[:room], *suffix][:length]


@dataclasses.dataclass(frozen=True, eq=False)
class PlainTask:
  """A task of texts, with the members of seqio.Task that `t5x.infer` uses."""

  name: str
  output_features: Mapping[str, PlainFeature]  # Of "inputs" and "targets".
  splits: tuple[str, ...]
  num_input_examples: Callable[[str], int]  # Of a split.
  # Maps a split to (inputs, targets) texts of each example, in order.
  read: Callable[[str], Iterator[tuple[str, str]]]

  def example(
    self, texts: tuple[str, str], lengths: Mapping[str, int]
  ) -> dict[str, Any]:
    """Returns texts and tokens, like a seqio task.

    Tokens are truncated to the lengths, but prefix and suffix are kept.
    """
    features = {}
    for name, text in zip(("inputs", "targets"), texts, strict=True):
      tokens = self.output_features[name].encode(text, lengths[name])
      features[f"{name}_pretokenized"] = text.encode("utf-8")
      features[name] = np.array(tokens, np.int32)
    return features


class Rows:
  """A list of examples, with the members of tf.data.Dataset that `t5x.infer` uses."""

  def __init__(self, rows: Iterable[Any]):
    self._rows = list(rows)

  def as_numpy_iterator(self) -> Iterator[Any]:
    """Returns an iterator of the examples."""
    return iter(self._rows)

  def enumerate(self) -> "Rows":
    """Returns (number, example) pairs."""
    return Rows((np.int64(number), row) for number, row in enumerate(self._rows))


def register(task: PlainTask) -> None:
  """Registers a task, and replaces a task of the same name."""
  _tasks[task.name] = task


def allow_deferring() -> None:
  """Allows packages to defer work that needs seqio, for the command `t5x.infer`."""
  global _may_defer
  _may_defer = True


def is_deferring() -> bool:
  """Returns whether packages should defer tasks: if allowed, and before seqio loads."""
  return _may_defer and not is_seqio_loaded()


def defer(name: str, add: Callable[[], Any]) -> None:
  """Adds a task to seqio's registry when seqio is needed.

  Args:
    name: name of the task.
    add: function that adds the task.
  """
  _deferred[name] = add


def find(name: Any) -> PlainTask | None:
  """Returns the task of a name; None if only seqio may have such a task."""
  return _tasks.get(name) if isinstance(name, str) else None


def digest_of(name: str, split: str) -> str | None:
  """Returns a digest of a task's texts; None if only seqio has the task."""
  if (task := find(name)) is None:
    return None
  digest = hashlib.sha256()
  for texts in task.read(split):
    digest.update(repr(texts).encode())
  return digest.hexdigest()[:16]


def is_seqio_loaded() -> bool:
  """Returns whether seqio has been imported, and therefore TensorFlow."""
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
