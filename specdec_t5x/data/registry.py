"""Puts tasks into seqio's registry: the same arguments give the same task again.

gin evaluates `@tasks.translation_from_files()` once for each place that uses it, and
seqio refuses a second task of one name, so registering has to be idempotent.
"""

import dataclasses
import hashlib
from collections.abc import Callable

import seqio
import tensorflow as tf

from specdec_t5x.data import metrics, vocabularies

METRICS = {
  "bleu": metrics.bleu,
  "rouge": metrics.rouge,
  "log_likelihood": metrics.log_likelihood,
}
# Tokens of inputs and targets, and EOS after both.
TOKENS = (
  seqio.preprocessors.tokenize,
  seqio.CacheDatasetPlaceholder(),
  seqio.preprocessors.append_eos_after_trim,
)


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
    file = getattr(self.vocabulary, "sentencepiece_model_file", "")
    vocabulary = (
      f"{type(self.vocabulary).__name__}({file}, {self.vocabulary.extra_ids})"
    )
    texts = [repr(x) for x in self.preprocessors if dataclasses.is_dataclass(x)]
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

  def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of inputs and targets."""
    source, target = self.fields

    def to_text(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      inputs = tf.strings.join([self.prefix, example[source]])
      return {"inputs": inputs, "targets": example[target]}

    return dataset.map(to_text, num_parallel_calls=tf.data.AUTOTUNE)


_specs: dict[str, tuple[TaskSpec, seqio.Task]] = {}


def register(
  name: str, spec: TaskSpec, make_source: Callable[[], seqio.DataSource]
) -> str:
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
      found = known.describe() if known else "a task that this package did not register"
      raise ValueError(
        f"A task named {name!r} is registered already, with other arguments.\n"
        f"Registered: {found}\nAsked for:  {spec.describe()}\n"
        "Choose another name."
      )
    return name
  task = seqio.TaskRegistry.add(
    name,
    source=make_source(),
    preprocessors=spec.preprocessors,
    output_features={
      "inputs": seqio.Feature(spec.vocabulary, add_eos=spec.inputs_end),
      "targets": seqio.Feature(spec.vocabulary, add_eos=True),
    },
    metric_fns=[METRICS[spec.metric]] if spec.metric else [],
  )
  _specs[name] = (spec, task)
  return name


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
