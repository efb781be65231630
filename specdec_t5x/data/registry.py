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
from typing import TYPE_CHECKING, Any

from etils import epy

from specdec_t5x.data import metrics, vocabularies
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.frames import Frame, frame_of
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary

if TYPE_CHECKING:
  from specdec_t5x.data.from_texts import Texts

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
class TaskSpec:
  """The specification of a task: equal specifications mean the same task."""

  # The source of the examples, comparable and printable.
  origin: tuple
  # The step from raw examples to inputs and targets, a dataclass, because dataclasses
  # are comparable and printable; None if raw examples have inputs and targets.
  step: Callable | None
  vocabulary: seqio.Vocabulary
  metric: str | None = None  # A key of METRICS, or None without references.
  # The steps from texts to tokens if inputs have no EOS. By default, inputs and targets
  # are separate texts, each with EOS.
  tokens: tuple[Callable, ...] = ()

  def describe(self) -> str:
    """Returns the spec as text, without loading the vocabulary as str would."""
    file = _file_of(self.vocabulary)
    vocabulary = (
      f"{type(self.vocabulary).__name__}({file}, {self.vocabulary.extra_ids})"
    )
    step = [repr(self.step)] if self.step else []
    return ", ".join([f"{self.origin}", *step, vocabulary, f"metric {self.metric}"])


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


def _frame_inputs(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int] | None, frame: Frame
) -> tf.data.Dataset:
  """Adds a vocabulary's prefix and suffix to inputs, and truncates long inputs."""
  prefix, suffix = (tf.constant(tokens, tf.int32) for tokens in frame)
  room = None
  if sequence_length is not None:
    room = max(0, sequence_length["inputs"] - sum(map(len, frame)))

  def add(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    inputs = tf.concat([prefix, example["inputs"][:room], suffix], axis=0)
    return example | {"inputs": inputs}

  return dataset.map(add, num_parallel_calls=tf.data.AUTOTUNE)


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
  runtime = sys.modules.get("t5x.plain_tasks")
  if vocabularies.is_waiting_for_seqio():
    if name in _specs:
      _check_same(name, spec, _specs[name][0])
      return name
    _specs[name] = (spec, None)
    runtime.defer(name, functools.partial(_add, name, spec, make_source))
  else:
    _add(name, spec, make_source)
  if runtime and texts and isinstance(spec.step, AddPrefix):
    frame = functools.partial(frame_of, spec.vocabulary)
    features = {
      "inputs": runtime.PlainFeature(spec.vocabulary, frame=frame),
      "targets": runtime.PlainFeature(spec.vocabulary, _has_end(spec.vocabulary)),
    }

    def pairs(split):
      return spec.step.pairs(texts.columns(split))

    splits = tuple(texts.sizes)
    runtime.register(runtime.PlainTask(name, features, splits, texts.count, pairs))
  return name


def _has_end(vocabulary: Any) -> bool:
  """Returns whether targets can end with EOS."""
  return _is_file(vocabulary) or vocabulary.eos_id is not None


def _is_file(vocabulary: Any) -> bool:
  """Returns whether a vocabulary is a SentencePiece file, or one of seqio's own.

  Both have EOS. A file may be in a bucket, so this function does not read the file.
  """
  is_file = isinstance(vocabulary, SentencePieceVocabulary)
  return is_file or not isinstance(vocabulary, Vocabulary)


def _file_of(vocabulary: Any) -> str:
  """Returns the file or folder of a vocabulary; '' for seqio's bytes."""
  file = getattr(vocabulary, "sentencepiece_model_file", None)
  return file or getattr(vocabulary, "path", "")


def _check_same(name: str, spec: TaskSpec, old_spec: TaskSpec | None) -> None:
  """Raises a ValueError if another task has the name."""
  if old_spec != spec:
    old_task = old_spec.describe() if old_spec else "a task of another package"
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
  tokens = spec.tokens
  inputs_end = False
  if not tokens:
    # Inputs may have a prefix, or a suffix other than EOS.
    inputs_end = _is_file(vocabulary) or frame_of(vocabulary) == (
      ((), (vocabulary.eos_id,))
    )
    frame = []
    if not inputs_end:
      frame.append(functools.partial(_frame_inputs, frame=frame_of(vocabulary)))
    tokens = (
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      *frame,
      seqio.preprocessors.append_eos_after_trim,
    )
  task = seqio.TaskRegistry.add(
    name,
    source=make_source(),
    preprocessors=[*([spec.step] if spec.step else []), *tokens],
    output_features={
      "inputs": seqio.Feature(vocabulary, add_eos=inputs_end),
      "targets": seqio.Feature(vocabulary, add_eos=_has_end(vocabulary)),
    },
    metric_fns=[METRICS[spec.metric]] if spec.metric else [],
  )
  _specs[name] = (spec, task)


def register_tfds(
  base: str,
  dataset: str,
  step: Callable,
  vocabulary: seqio.Vocabulary | None,
  name: str | None,
  *,
  metric: str,
  tokens: tuple[Callable, ...] = (),
) -> str:
  """Registers a task of TFDS's `dataset`, and returns the task's name.

  Args:
    base: the name of the task with T5's vocabulary.
    dataset: TFDS's name of the dataset.
    step: as in `TaskSpec`.
    vocabulary: the vocabulary; None means T5's.
    name: the task's name; None means `name_with_vocabulary`.
    metric: as in `TaskSpec`.
    tokens: as in `TaskSpec`.
  """
  if vocabulary is None:
    vocabulary = vocabularies.t5_vocabulary()
  name = name or name_with_vocabulary(base, vocabulary)
  spec = TaskSpec(("tfds", dataset), step, vocabulary, metric, tokens)
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
  kind = type(vocabulary).__name__
  kinds = ("SentencePieceVocabulary", "ByteVocabulary")
  if not isinstance(vocabulary, Vocabulary) and kind not in kinds:
    raise ValueError(
      f"No task name can be derived from a {kind}. Expected a "
      "SentencePieceVocabulary or ByteVocabulary; otherwise pass `name`."
    )
  identity = f"{kind}|{_file_of(vocabulary)}|{vocabulary.extra_ids}"
  return f"{base}_v{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
