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

from specdec_t5x.data import metrics
from specdec_t5x.data.vocabularies import T5_VOCABULARY
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.frames import frame_of
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary

with epy.lazy_imports():
  import seqio
  import tensorflow as tf
  import tensorflow_datasets as tfds

Columns = Mapping[str, list[str]]
_METRICS = (metrics.bleu, metrics.rouge, metrics.log_likelihood)
METRICS = {metric.__name__: metric for metric in _METRICS}


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
  tokens: tuple[Callable, ...] = dataclasses.field(default=(), repr=False)


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
  """The texts of a task. Splits may be parts, such as 'test[:100]'."""

  origins: Mapping[str, tuple]
  read: Callable[[tuple], Columns]
  sizes: Mapping[str, int]

  def count(self, split: str) -> int:
    """Returns the number of examples."""
    parts = _parts_of(split, self.sizes)
    return sum(len(range(self.sizes[name])[part]) for name, part in parts)

  def columns(self, split: str) -> Columns:
    """Reads the raw texts.

    Raises:
      ValueError: if a file has another size than at the registration.
    """
    columns = {}
    for name, part in _parts_of(split, self.sizes):
      origin = self.origins[name]
      whole = self.read(origin)
      if _height(whole) != self.sizes[name]:
        raise ValueError(
          f"{origin} had {self.sizes[name]} examples when the task was registered and "
          f"has {_height(whole)} now. Do not change files of a registered task."
        )
      for key, texts in whole.items():
        columns.setdefault(key, []).extend(texts[part])
    return columns

  def source(self) -> seqio.FunctionDataSource:
    """Returns seqio's source of the texts, which also counts the examples of parts."""
    texts = self

    def dataset_fn(split: str, shuffle_files: bool) -> tf.data.Dataset:
      del shuffle_files
      # T5X saves the iterator's position in a tf.train.Checkpoint. A Python generator
      # does not support this, but tensors do.
      return tf.data.Dataset.from_tensor_slices(texts.columns(split))

    class Source(seqio.FunctionDataSource):
      has_parts = True

      def num_input_examples(self, split: str) -> int:
        return texts.count(split)

      def get_dataset(self, split, shuffle=True, seed=None, shard_info=None, **words):
        # seqio would warn that shuffling can't resume after a restart. Here the seed
        # determines the order, because the whole dataset is shuffled.
        dataset = super().get_dataset(split, False, None, shard_info, **words)
        return dataset.shuffle(texts.count(split), seed=seed) if shuffle else dataset

    return Source(dataset_fn, tuple(self.sizes), self.sizes)


def _parts_of(split: str, sizes: Mapping[str, int]) -> list[tuple[str, slice]]:
  """Returns the splits and slices of `split`, such as 'train[50%:]+test[:10]'.

  Raises a ValueError if `split` is no part of the splits, or holds no example.
  """
  if split in sizes:
    return [(split, slice(None))]
  infos = {
    name: tfds.core.SplitInfo(name=name, shard_lengths=[size], num_bytes=0)
    for name, size in sizes.items()
  }
  try:
    instructions = tfds.core.ReadInstruction.from_spec(split).to_absolute(infos)
  except (ValueError, NotImplementedError) as error:
    reason = str(error).splitlines()[-1]
    raise ValueError(f"{split!r} is not a part of {dict(sizes)}: {reason}") from error
  parts = [(x.splitname, slice(x.from_, x.to)) for x in instructions]
  if not any(range(sizes[name])[part] for name, part in parts):
    raise ValueError(
      f"{split!r} holds no example of {dict(sizes)}. Choose another part."
    )
  return parts


def _height(columns: Columns) -> int:
  (size,) = {len(column) for column in columns.values()}
  return size


def register_texts(
  name: str,
  origins: Mapping[str, tuple],
  read: Callable[[tuple], Columns],
  step: Callable | None,
  vocabulary: seqio.Vocabulary | None,
  metric: str | None = None,
  tokens: tuple[Callable, ...] = (),
) -> str:
  """Reads every split once to check and count the texts, then registers the task.

  Args:
    name: the task's name, which is also the result.
    origins: split -> argument of `read`, comparable and printable.
    read: returns the columns of a split, with equal lengths; each new dataset calls
      `read` again, so that the process does not keep the texts in memory.
    step: as in `TaskSpec`.
    vocabulary: the vocabulary; None means T5's.
    metric: as in `TaskSpec`.
    tokens: as in `TaskSpec`.

  Raises:
    ValueError: if there is no split, `read` raises an error, or another task has the
      name.
  """
  if not origins:
    raise ValueError(
      "files must have an entry for every split, such as {'test': ...}, got an empty "
      "dict."
    )
  sizes = {split: _height(read(origin)) for split, origin in origins.items()}
  texts = Texts(origins, read, sizes)
  # The spec contains the sizes, because a file that has grown is another task.
  origin = tuple((split, *origins[split], sizes[split]) for split in sorted(origins))
  spec = TaskSpec(origin, step, vocabulary or T5_VOCABULARY, metric, tokens)
  return _register(name, spec, texts.source, texts)


def register_tfds(
  base: str,
  dataset: str,
  step: Callable,
  vocabulary: seqio.Vocabulary | None,
  name: str | None,
  metric: str,
  tokens: tuple[Callable, ...] = (),
) -> str:
  """Registers a task of TFDS's `dataset`, and returns the task's name.

  Args:
    base: the name of the task with T5's vocabulary.
    dataset: TFDS's name of the dataset.
    step: as in `TaskSpec`.
    vocabulary: the vocabulary; None means T5's.
    name: the task's name. None means `base` for T5's vocabulary, and `base`_v<8 hex
      digits> for others: the start of the SHA-256 of the vocabulary's class, file and
      number of extra ids. Machines with the same path get the same name.
    metric: as in `TaskSpec`.
    tokens: as in `TaskSpec`.

  Raises:
    ValueError: if another task has the name.
  """
  vocabulary = vocabulary or T5_VOCABULARY
  if name is None:
    file = getattr(vocabulary, "sentencepiece_model_file", None)
    file = file or getattr(vocabulary, "path", "")  # seqio's bytes have no file.
    identity = f"{type(vocabulary).__name__}|{file}|{vocabulary.extra_ids}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    name = base if vocabulary == T5_VOCABULARY else f"{base}_v{digest}"
  spec = TaskSpec(("tfds", dataset), step, vocabulary, metric, tokens)
  return _register(name, spec, lambda: seqio.TfdsDataSource(dataset))


_specs: dict[str, TaskSpec] = {}  # By the task's name.


def _register(
  name: str,
  spec: TaskSpec,
  make_source: Callable[[], seqio.DataSource],
  texts: Texts | None = None,
) -> str:
  """Registers the task if the name is new, or checks that the spec is the same.

  `t5x.infer` of `t5x_runtime` reads `texts` without seqio, and defers the registration
  with seqio.
  """
  if not re.fullmatch(r"[\w.:]+", name):
    raise ValueError(
      f"The task's name must have letters, digits, '_', '.' and ':' only, got {name!r}."
    )
  runtime = sys.modules.get("t5x.plain_tasks")
  if runtime is None or not runtime.is_deferring():
    _add(name, spec, make_source)
  elif name in _specs:
    _check_same(name, spec)
  else:
    _specs[name] = spec
    runtime.defer(name, functools.partial(_add, name, spec, make_source))
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
  """Returns whether targets can end with EOS.

  SentencePiece files and seqio's vocabularies have EOS. A file may be in a bucket, so
  this function does not read the file.
  """
  if isinstance(vocabulary, SentencePieceVocabulary):
    return True
  return not isinstance(vocabulary, Vocabulary) or vocabulary.eos_id is not None


def _check_same(name: str, spec: TaskSpec) -> None:
  """Raises a ValueError if another task has the name."""
  old = _specs.get(name, "a task of another package")
  if old != spec:
    raise ValueError(
      f"A task named {name!r} is already registered with other arguments.\nRegistered: "
      f"{old}\nAsked for:  {spec}\nChoose another name."
    )


def _add(
  name: str, spec: TaskSpec, make_source: Callable[[], seqio.DataSource]
) -> None:
  """Adds the task to seqio's registry, if the registry does not have the task."""
  if name in seqio.TaskRegistry.names():
    _check_same(name, spec)
    return
  tokens = spec.tokens or (
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    _frame_inputs,
    seqio.preprocessors.append_eos_after_trim,
  )
  vocabulary = spec.vocabulary
  seqio.TaskRegistry.add(
    name,
    source=make_source(),
    preprocessors=[*([spec.step] if spec.step else []), *tokens],
    output_features={
      "inputs": seqio.Feature(vocabulary, add_eos=False),
      "targets": seqio.Feature(vocabulary, add_eos=_has_end(vocabulary)),
    },
    metric_fns=[METRICS[spec.metric]] if spec.metric else [],
  )
  _specs[name] = spec


def _frame_inputs(
  dataset: tf.data.Dataset,
  output_features: Mapping[str, seqio.Feature],
  sequence_length: Mapping[str, int] | None,
) -> tf.data.Dataset:
  """Adds a vocabulary's prefix and suffix to inputs, and truncates long inputs."""
  frame = frame_of(output_features["inputs"].vocabulary)
  prefix, suffix = (tf.constant(tokens, tf.int32) for tokens in frame)
  length = (sequence_length or {}).get("inputs")
  room = None if length is None else max(0, length - sum(map(len, frame)))

  def add(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    inputs = tf.concat([prefix, example["inputs"][:room], suffix], axis=0)
    return example | {"inputs": inputs}

  return dataset.map(add, num_parallel_calls=tf.data.AUTOTUNE)
