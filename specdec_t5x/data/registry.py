"""Puts tasks into seqio's registry: the same arguments give the same task again.

gin evaluates `@tasks.translation_from_files()` once for each place that uses it, and
seqio refuses a second task of one name, so registering has to be idempotent.
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
  """Stands for seqio's steps to tokens of inputs and targets, with EOS after both."""

  def steps(self, frame: Frame | None = None) -> tuple[Any, ...]:
    """Returns the steps.

    Args:
      frame: the tokens around inputs; None where EOS is all.
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
  """Puts a vocabulary's tokens around inputs, which are cut so that these have room.

  Attributes:
    frame: the tokens in front of inputs, and those behind them.
    sequence_length: the lengths of features, which seqio sets; None cuts no input.
  """

  frame: Frame
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
  """All that tells one task from another: equal specs are the same task.

  Attributes:
    origin: where the examples come from, in a form that compares and prints.
    preprocessors: from raw examples to tokens: functions of modules, and dataclasses,
      which compare and print.
    vocabulary: encodes inputs and targets.
    metric: a key of METRICS, or None where there are no references.
    inputs_end: whether inputs have an EOS, as targets do.
  """

  origin: tuple
  preprocessors: tuple[Callable, ...]
  vocabulary: seqio.Vocabulary
  metric: str | None = None
  inputs_end: bool = True

  def describe(self) -> str:
    """Prints the spec without loading its vocabulary, which str(vocabulary) would."""
    file = _file_of(self.vocabulary)
    vocabulary = (
      f"{type(self.vocabulary).__name__}({file}, {self.vocabulary.extra_ids})"
    )
    steps = [x for x in self.preprocessors if x not in TOKENS]
    texts = [repr(x) for x in steps if dataclasses.is_dataclass(x)]
    return ", ".join([f"{self.origin}", *texts, vocabulary, f"metric {self.metric}"])


@dataclasses.dataclass(frozen=True)
class AddPrefix:
  """Makes T5's text-to-text form: inputs are prefix + source, targets as they are.

  Attributes:
    fields: the names of the source and the target text in the raw examples.
    prefix: text put before every source, its separating space included.
  """

  fields: tuple[str, str]
  prefix: str

  def pairs(self, columns: Columns) -> Iterator[tuple[str, str]]:
    """Yields inputs and targets of texts in memory."""
    sources, targets = (columns[field] for field in self.fields)
    for source, target in zip(sources, targets, strict=True):
      yield self.prefix + source, target

  def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of inputs and targets."""
    source, target = self.fields

    def to_text(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      inputs = tf.strings.join([self.prefix, example[source]])
      return {"inputs": inputs, "targets": example[target]}

    return dataset.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


@dataclasses.dataclass(frozen=True)
class Texts:
  """A task's texts, for a reader without TensorFlow.

  Attributes:
    splits: the names of the splits.
    count: from a split, or parts of splits, to the number of its examples.
    columns: from the same to its raw texts.
  """

  splits: tuple[str, ...]
  count: Callable[[str], int]
  columns: Callable[[str], Columns]


# By name; the task is None while it waits for seqio.
_specs: dict[str, tuple[TaskSpec, seqio.Task | None]] = {}


def register(
  name: str,
  spec: TaskSpec,
  make_source: Callable[[], seqio.DataSource],
  texts: Texts | None = None,
) -> str:
  """Registers the task, or finds that it is registered already.

  `t5x.infer` of `t5x_runtime` reads texts by itself, and lets seqio wait.

  Args:
    name: the task's name.
    spec: what the task is.
    make_source: makes the raw examples' source; called for a new task only.
    texts: the raw examples, where they are texts in memory.

  Returns:
    `name`.

  Raises:
    ValueError: `name` belongs to a task with another spec, or has characters that
      seqio does not allow.
  """
  if not re.fullmatch(r"[\w.:]+", name):
    raise ValueError(
      f"The task's name is {name!r}. Expected letters, digits, '_', '.' and ':'."
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
  """Registers the task with `t5x_runtime`, where that runs and can read it."""
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
  read = lambda split: prefix.pairs(texts.columns(split))
  runtime.register(runtime.PlainTask(name, features, texts.splits, texts.count, read))


def _steps(step: Any, frame: Frame | None) -> tuple[Any, ...]:
  return step.steps(frame) if isinstance(step, Tokenize) else (step,)


def _has_frame(spec: TaskSpec) -> bool:
  """Returns whether inputs have other tokens around them than EOS."""
  vocabulary = spec.vocabulary
  return not _is_file(vocabulary) and frame_of(vocabulary) != ((), (vocabulary.eos_id,))


def _has_end(vocabulary: Any) -> bool:
  """Returns whether targets can have EOS at their end."""
  return _is_file(vocabulary) or vocabulary.eos_id is not None


def _is_file(vocabulary: Any) -> bool:
  """Returns whether a vocabulary is a SentencePiece file, or seqio's own.

  Each has EOS. A file may lie in a bucket, so it is not read before it is needed.
  """
  is_file = isinstance(vocabulary, SentencePieceVocabulary)
  return is_file or not isinstance(vocabulary, Vocabulary)


def _input_frame(spec: TaskSpec) -> Frame:
  """Returns the tokens in front of inputs, and those behind them."""
  prefix, suffix = frame_of(spec.vocabulary)
  return prefix, suffix if spec.inputs_end else ()


def _file_of(vocabulary: Any) -> str:
  """Returns the file or folder of a vocabulary; '' for seqio's bytes."""
  file = getattr(vocabulary, "sentencepiece_model_file", None)
  return file or getattr(vocabulary, "path", "")


def _check_same(name: str, spec: TaskSpec, known: TaskSpec | None) -> None:
  """Raises a ValueError where a name is taken by another task."""
  if known != spec:
    found = known.describe() if known else "a task that this package did not register"
    raise ValueError(
      f"A task named {name!r} is registered already, with other arguments.\n"
      f"Registered: {found}\nAsked for:  {spec.describe()}\n"
      "Choose another name."
    )


def _add(
  name: str, spec: TaskSpec, make_source: Callable[[], seqio.DataSource]
) -> None:
  """Adds the task to seqio's registry, where it is not there already."""
  if name in seqio.MixtureRegistry.names():
    raise ValueError(f"{name!r} is a registered mixture. Choose another task name.")
  if name in seqio.TaskRegistry.names():
    known, task = _specs.get(name, (None, None))
    if task is not seqio.TaskRegistry.get(name):
      known = None  # registered by someone else
    _check_same(name, spec, known)
    return
  has_frame = _has_frame(spec)
  steps = functools.partial(_steps, frame=_input_frame(spec) if has_frame else None)
  task = seqio.TaskRegistry.add(
    name,
    source=make_source(),
    preprocessors=[each for step in spec.preprocessors for each in steps(step)],
    output_features={
      "inputs": seqio.Feature(
        spec.vocabulary, add_eos=spec.inputs_end and not has_frame
      ),
      "targets": seqio.Feature(spec.vocabulary, add_eos=_has_end(spec.vocabulary)),
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
  """Registers a task of TFDS's `dataset`; returns its name.

  Arguments are those of `TaskSpec`, with T5's vocabulary where None, and of
  `name_with_vocabulary`, which names the task where `name` is None.
  """
  if vocabulary is None:
    vocabulary = vocabularies.t5_vocabulary()
  name = name or name_with_vocabulary(base, vocabulary)
  origin = "tfds", dataset
  spec = TaskSpec(origin, preprocessors, vocabulary, metric, inputs_end)
  return register(name, spec, lambda: seqio.TfdsDataSource(dataset))


def name_with_vocabulary(base: str, vocabulary: seqio.Vocabulary) -> str:
  """Returns `base` for T5's vocabulary, `base`_v<8 hex digits> for another one.

  The digits are the start of the SHA-256 of the vocabulary's class, file and number
  of extra ids, so they are the same on every machine that uses the same path.

  Args:
    base: the name of the task with T5's vocabulary.
    vocabulary: the vocabulary that the task is to use.

  Returns:
    The name to register under.

  Raises:
    ValueError: the vocabulary is of a class that has nothing to name it by.
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
