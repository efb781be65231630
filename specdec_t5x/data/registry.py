"""Puts tasks into seqio's registry: the same arguments give the same task again.

gin evaluates `@tasks.translation_from_files()` once for each place that uses it, and
seqio refuses a second task of one name, so registering has to be idempotent.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import seqio
import tensorflow as tf

from specdec_t5x.data import metrics, vocabularies

METRICS = {"bleu": metrics.bleu, "rouge": metrics.rouge}


class Spec(Protocol):
  """All that tells one task from another: equal specs are the same task."""

  def preprocessors(self) -> Sequence[Callable]: ...

  def output_features(self) -> Mapping[str, seqio.Feature]: ...

  def metric_fns(self) -> Sequence[Callable]: ...

  def describe(self) -> str: ...


@dataclasses.dataclass(frozen=True)
class TaskSpec:
  """A text-to-text task.

  Attributes:
    origin: where the examples come from, in a form that compares and prints.
    fields: the names of the source and the target text in the raw examples.
    prefix: text put before every source, its separating space included.
    vocabulary: encodes inputs and targets.
    metric: a key of METRICS, or None where there are no references.
  """

  origin: tuple
  fields: tuple[str, str]
  prefix: str
  vocabulary: seqio.Vocabulary
  metric: str | None

  def preprocessors(self) -> Sequence[Callable]:
    """Prefix, tokens, EOS after both texts."""
    return [
      functools.partial(add_prefix, fields=self.fields, prefix=self.prefix),
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      seqio.preprocessors.append_eos_after_trim,
    ]

  def output_features(self) -> Mapping[str, seqio.Feature]:
    """Inputs and targets, with one vocabulary."""
    feature = seqio.Feature(self.vocabulary, add_eos=True)
    return {"inputs": feature, "targets": feature}

  def metric_fns(self) -> Sequence[Callable]:
    """The metric, if there is one."""
    return [METRICS[self.metric]] if self.metric else []

  def describe(self) -> str:
    """Prints the spec without loading its vocabulary."""
    return (
      f"{self.origin}, fields {self.fields}, prefix {self.prefix!r}, "
      f"{describe_vocabulary(self.vocabulary)}, metric {self.metric}"
    )


_specs: dict[str, tuple[Spec, seqio.Task]] = {}


def register(name: str, spec: Spec, make_source: Callable[[], seqio.DataSource]) -> str:
  """Registers the task, or finds that it is registered already.

  Args:
    name: the task's name.
    spec: what the task is.
    make_source: makes the raw examples' source; called for a new task only.

  Returns:
    `name`.

  Raises:
    ValueError: `name` belongs to a task with another spec, or has characters that
      seqio does not allow.
  """
  if name in seqio.MixtureRegistry.names():
    raise ValueError(f"{name!r} is a registered mixture. Choose another task name.")
  if name in seqio.TaskRegistry.names():
    known, task = _specs.get(name, (None, None))
    if task is not seqio.TaskRegistry.get(name):
      known = None  # registered by someone else
    if known != spec:
      raise ValueError(
        f"A task named {name!r} is registered already, with other arguments.\n"
        f"Registered: {_describe(known)}\nAsked for:  {spec.describe()}\n"
        "Choose another name."
      )
    return name
  task = seqio.TaskRegistry.add(
    name,
    source=make_source(),
    preprocessors=spec.preprocessors(),
    output_features=spec.output_features(),
    metric_fns=spec.metric_fns(),
  )
  _specs[name] = (spec, task)
  return name


def add_prefix(
  dataset: tf.data.Dataset, fields: tuple[str, str], prefix: str
) -> tf.data.Dataset:
  """Makes T5's text-to-text form: inputs are prefix + source, targets as they are."""
  source, target = fields

  def to_text(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    inputs = tf.strings.join([prefix, example[source]])
    return {"inputs": inputs, "targets": example[target]}

  return dataset.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


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
  if not isinstance(vocabulary, seqio.SentencePieceVocabulary | seqio.ByteVocabulary):
    raise ValueError(
      f"No task name can be derived from a {type(vocabulary).__name__}. Expected a "
      "SentencePieceVocabulary or ByteVocabulary; otherwise pass `name`."
    )
  file = getattr(vocabulary, "sentencepiece_model_file", "")
  identity = f"{type(vocabulary).__name__}|{file}|{vocabulary.extra_ids}"
  return f"{base}_v{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def describe_vocabulary(vocabulary: seqio.Vocabulary) -> str:
  """Prints a vocabulary without loading it, which str(vocabulary) would."""
  file = getattr(vocabulary, "sentencepiece_model_file", "")
  return f"{type(vocabulary).__name__}({file}, {vocabulary.extra_ids})"


def _describe(spec: Spec | None) -> str:
  return spec.describe() if spec else "a task that this package did not register"
