"""Registers tasks with seqio, idempotently: equal arguments give the same task.

gin evaluates `@tasks.translation_from_files()` once per use, and seqio refuses a second
task of the same name, so registration must be idempotent.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from etils import epy

from specdec_t5x.data import metrics, vocabularies
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.frames import Frame, frame_of
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary

with epy.lazy_imports():
  import seqio
  import tensorflow as tf

Columns = Mapping[str, list[str]]
METRICS = {
  "bleu": metrics.bleu,
  "rouge": metrics.rouge,
  "log_likelihood": metrics.log_likelihood,
}


@dataclasses.dataclass(frozen=True)
class Tokenize:
  """A placeholder for seqio's steps to tokens, with EOS after inputs and targets."""

  def steps(self, frame: Frame | None = None) -> tuple[Any, ...]:
    """Returns the steps.

    Args:
      frame: the tokens around inputs; None means only EOS after inputs.
    """
    return (
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      *(() if frame is None else (FrameInputs(frame),)),
      seqio.preprocessors.append_eos_after_trim,
    )


TOKENS = (Tokenize(),)


@dataclasses.dataclass(frozen=True)
class FrameInputs:
  """Adds a vocabulary's prefix and suffix to inputs, and truncates long inputs."""

  frame: Frame
  # Lengths of features, set by seqio; None truncates no input.
  sequence_length: Mapping[str, int] | None = None

  def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with framed inputs."""
    prefix, suffix = (tf.constant(tokens, tf.int32) for tokens in self.frame)
    around = sum(map(len, self.frame))
    lengths = self.sequence_length
    room = None if lengths is None else max(0, lengths["inputs"] - around)

    def add(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      inputs = tf.concat([prefix, example["inputs"][:room], suffix], axis=0)
      return example | {"inputs": inputs}

    return dataset.map(add, num_parallel_calls=tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True)
class TaskSpec:
  """The specification of a task: equal specifications mean the same task."""

  # The source of the examples, comparable and printable.
  origin: tuple
  # Steps from raw examples to tokens: functions of modules, or dataclasses, because
  # dataclasses are comparable and printable.
  preprocessors: tuple[Callable, ...]
  vocabulary: seqio.Vocabulary
  metric: str | None = None  # A key of METRICS, or None without references.
  inputs_end: bool = True  # Whether inputs have an EOS, like targets.

  def describe(self) -> str:
    """Returns the spec as text, without loading the vocabulary as str would."""
    file = _file_of(self.vocabulary)
    vocabulary = (
      f"{type(self.vocabulary).__name__}({file}, {self.vocabulary.extra_ids})"
    )
    steps = [x for x in self.preprocessors if x not in TOKENS]
    texts = [repr(x) for x in steps if dataclasses.is_dataclass(x)]
    return ", ".join([f"{self.origin}", *texts, vocabulary, f"metric {self.metric}"])


@dataclasses.dataclass(frozen=True)
class AddPrefix:
  """Converts to T5's text-to-text form: inputs are prefix + source, targets unchanged.

  A source that starts with the prefix is an input as the source is.
  """

  fields: tuple[str, str]  # The names of source and target in the raw examples.
  prefix: str  # Text before every source, including the separating space.

  def pairs(self, columns: Columns) -> Iterator[tuple[str, str]]:
    """Yields inputs and targets of texts in memory."""
    sources, targets = (columns[field] for field in self.fields)
    for source, target in zip(sources, targets, strict=True):
      yield self.prefix + source.removeprefix(self.prefix), target

  def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of inputs and targets."""
    source, target = self.fields

    def to_text(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      start = tf.strings.substr(example[source], 0, len(self.prefix.encode()))
      prefix = tf.where(start == self.prefix, "", self.prefix)
      inputs = tf.strings.join([prefix, example[source]])
      return {"inputs": inputs, "targets": example[target]}

    return dataset.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True)
class Texts:
  """A task's texts, for a reader without TensorFlow."""

  splits: tuple[str, ...]
  count: Callable[[str], int]  # From a split, or parts of splits, to their examples.
  columns: Callable[[str], Columns]  # The raw texts of a split, or of parts.


# Specs and tasks by name; the task is None before registration with seqio.
_specs: dict[str, tuple[TaskSpec, seqio.Task | None]] = {}


def register(
  name: str,
  spec: TaskSpec,
  make_source: Callable[[], seqio.DataSource],
  texts: Texts | None = None,
) -> str:
  """Registers the task if the name is new, or checks that the spec is the same.

  `t5x.infer` of `t5x_runtime` reads texts without seqio, and defers the registration
  with seqio.

  Args:
    name: the task's name, which is also the result.
    spec: the task's specification.
    make_source: returns the source of raw examples; called for a new task only.
    texts: the raw examples, if the examples are texts in memory.

  Raises:
    ValueError: if `name` belongs to a task with another spec, or has characters that
      seqio does not allow.
  """
  if not re.fullmatch(r"[\w.:]+", name):
    raise ValueError(
      f"The task's name must have letters, digits, '_', '.' and ':' only, got {name!r}."
    )
  if vocabularies.is_waiting_for_seqio():
    if name in _specs:
      _check_same(name, spec, _specs[name][0])
      return name
    _specs[name] = (spec, None)
    runtime = sys.modules["t5x.plain_tasks"]
    runtime.defer(name, functools.partial(_add, name, spec, make_source))
  else:
    _add(name, spec, make_source)
  _register_plainly(name, spec, texts)
  return name


def _register_plainly(name: str, spec: TaskSpec, texts: Texts | None) -> None:
  """Registers the task with `t5x_runtime`, if the runtime can read such a task."""
  runtime = sys.modules.get("t5x.plain_tasks")
  kinds = [type(step) for step in spec.preprocessors]
  if runtime is None or texts is None or kinds != [AddPrefix, Tokenize]:
    return
  prefix = spec.preprocessors[0]
  features = {
    "inputs": runtime.PlainFeature(
      spec.vocabulary, frame=functools.partial(_input_frame, spec)
    ),
    "targets": runtime.PlainFeature(spec.vocabulary, _has_end(spec.vocabulary)),
  }

  def pairs(split):
    return prefix.pairs(texts.columns(split))

  runtime.register(runtime.PlainTask(name, features, texts.splits, texts.count, pairs))


def _has_end(vocabulary: Any) -> bool:
  """Returns whether targets can end with EOS."""
  return _is_file(vocabulary) or vocabulary.eos_id is not None


def _is_file(vocabulary: Any) -> bool:
  """Returns whether a vocabulary is a SentencePiece file, or one of seqio's own.

  Both have EOS. A file may be in a bucket, so this function does not read the file.
  """
  is_file = isinstance(vocabulary, SentencePieceVocabulary)
  return is_file or not isinstance(vocabulary, Vocabulary)


def _input_frame(spec: TaskSpec) -> Frame:
  """Returns the prefix and the suffix of inputs."""
  prefix, suffix = frame_of(spec.vocabulary)
  return prefix, suffix if spec.inputs_end else ()


def _file_of(vocabulary: Any) -> str:
  """Returns the file or folder of a vocabulary; '' for seqio's bytes."""
  file = getattr(vocabulary, "sentencepiece_model_file", None)
  return file or getattr(vocabulary, "path", "")


def _check_same(name: str, spec: TaskSpec, old_spec: TaskSpec | None) -> None:
  """Raises a ValueError if another task has the name."""
  if old_spec != spec:
    old_task = "a task of another package"
    if old_spec:
      old_task = old_spec.describe()
    raise ValueError(
      f"A task named {name!r} is already registered with other arguments.\nRegistered: "
      f"{old_task}\nAsked for:  {spec.describe()}\nChoose another name."
    )


def _add(
  name: str, spec: TaskSpec, make_source: Callable[[], seqio.DataSource]
) -> None:
  """Adds the task to seqio's registry, if the registry does not have the task."""
  if name in seqio.MixtureRegistry.names():
    raise ValueError(f"{name!r} is a registered mixture. Choose another task name.")
  if name in seqio.TaskRegistry.names():
    old_spec, task = _specs.get(name, (None, None))
    if task is not seqio.TaskRegistry.get(name):
      old_spec = None  # Other code has registered the task.
    _check_same(name, spec, old_spec)
    return
  vocabulary = spec.vocabulary
  # Inputs may have a prefix, or a suffix other than EOS.
  has_frame = not _is_file(vocabulary) and (
    frame_of(vocabulary) != ((), (vocabulary.eos_id,))
  )
  frame = _input_frame(spec) if has_frame else None
  preprocessors = []
  for step in spec.preprocessors:
    preprocessors += step.steps(frame) if isinstance(step, Tokenize) else [step]
  task = seqio.TaskRegistry.add(
    name,
    source=make_source(),
    preprocessors=preprocessors,
    output_features={
      "inputs": seqio.Feature(vocabulary, add_eos=spec.inputs_end and not has_frame),
      "targets": seqio.Feature(vocabulary, add_eos=_has_end(vocabulary)),
    },
    metric_fns=[METRICS[spec.metric]] if spec.metric else [],
  )
  _specs[name] = (spec, task)


def register_tfds(
  base: str,
  dataset: str,
  preprocessors: tuple[Callable, ...],
  vocabulary: seqio.Vocabulary | None,
  name: str | None,
  *,
  metric: str,
  inputs_end: bool = True,
) -> str:
  """Registers a task of TFDS's `dataset`, and returns the task's name.

  Args:
    base: the name of the task with T5's vocabulary.
    dataset: TFDS's name of the dataset.
    preprocessors: as in `TaskSpec`.
    vocabulary: the vocabulary; None means T5's.
    name: the task's name; None means `name_with_vocabulary`.
    metric: as in `TaskSpec`.
    inputs_end: as in `TaskSpec`.
  """
  if vocabulary is None:
    vocabulary = vocabularies.t5_vocabulary()
  name = name or name_with_vocabulary(base, vocabulary)
  origin = ("tfds", dataset)
  spec = TaskSpec(origin, preprocessors, vocabulary, metric, inputs_end)
  return register(name, spec, lambda: seqio.TfdsDataSource(dataset))


def name_with_vocabulary(base: str, vocabulary: seqio.Vocabulary) -> str:
  """Returns `base` for T5's vocabulary, `base`_v<8 hex digits> for other vocabularies.

  The digits are the start of the SHA-256 of the vocabulary's class, file and number of
  extra ids. Machines with the same path of the file therefore get the same name.

  Raises:
    ValueError: if a vocabulary of this class has no identity for a name.
  """
  if vocabulary == vocabularies.t5_vocabulary():
    return base
  kinds = ("SentencePieceVocabulary", "ByteVocabulary")
  if not isinstance(vocabulary, Vocabulary) and type(vocabulary).__name__ not in kinds:
    raise ValueError(
      f"No task name can be derived from a {type(vocabulary).__name__}. Expected a "
      "SentencePieceVocabulary or ByteVocabulary; otherwise pass `name`."
    )
  file = _file_of(vocabulary)
  identity = f"{type(vocabulary).__name__}|{file}|{vocabulary.extra_ids}"
  return f"{base}_v{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
