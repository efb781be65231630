"""seqio tasks over the synthetic demo corpora, made in memory when they are used.

As in `specdec_t5x.data.tasks`, a function returns the name of the task it registered:

  MIXTURE_OR_TASK_NAME = @tasks.demo_ende()
  tasks.demo_ende:
    vocabulary = @vocabulary.demo_vocabulary()

The names say that the data are synthetic: their scores are no results on real data.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence

from etils import epy

from specdec_t5x.data import from_texts, registry, tasks
from specdec_t5x.demo.corpora import news, splits, translation

with epy.lazy_imports():
  import seqio
  import tensorflow as tf

  from specdec_t5x.data import language_modeling

ENDE_SIZES = {"train": 60_000, "validation": 500, "test": 500}
CNNDM_SIZES = {"train": 8_000, "validation": 200, "test": 200}
# Four sentences a text: as many sentences as in ENDE_SIZES.
LM_SIZES = {"train": 15_000, "validation": 125, "test": 125}

RowsFn = Callable[[str, int, int], Sequence[splits.Row]]


def demo_ende(
  vocabulary: seqio.Vocabulary,
  train_size: int = ENDE_SIZES["train"],
  validation_size: int = ENDE_SIZES["validation"],
  test_size: int = ENDE_SIZES["test"],
  seed: int = 0,
  name: str | None = None,
) -> str:
  """Registers the synthetic English-German task, and returns its name.

  Args:
    vocabulary: for inputs and targets, such as `vocabulary.demo_vocabulary()`.
    train_size: the number of training pairs.
    validation_size: the number of validation pairs.
    test_size: the number of test pairs.
    seed: the same seed and sizes give the same pairs on every machine.
    name: the task's name; by default `demo_synthetic_ende`, with suffixes for the
      vocabulary and for sizes or a seed other than the defaults.

  Returns:
    The registered name.

  Raises:
    ValueError: a size is not a positive integer, or the name is taken.
  """
  sizes = {"train": train_size, "validation": validation_size, "test": test_size}
  return _register(
    "demo_synthetic_ende",
    translation.rows,
    sizes,
    seed,
    tasks.TRANSLATE_ENDE,
    "bleu",
    vocabulary,
    name,
    is_default=sizes == ENDE_SIZES and seed == 0,
  )


def demo_cnndm(
  vocabulary: seqio.Vocabulary,
  train_size: int = CNNDM_SIZES["train"],
  validation_size: int = CNNDM_SIZES["validation"],
  test_size: int = CNNDM_SIZES["test"],
  seed: int = 0,
  name: str | None = None,
) -> str:
  """As `demo_ende`, for synthetic news articles with highlights, scored by ROUGE."""
  sizes = {"train": train_size, "validation": validation_size, "test": test_size}
  return _register(
    "demo_synthetic_cnndm",
    news.rows,
    sizes,
    seed,
    tasks.SUMMARIZE,
    "rouge",
    vocabulary,
    name,
    is_default=sizes == CNNDM_SIZES and seed == 0,
  )


def demo_lm(
  vocabulary: seqio.Vocabulary,
  train_size: int = LM_SIZES["train"],
  validation_size: int = LM_SIZES["validation"],
  test_size: int = LM_SIZES["test"],
  seed: int = 0,
  prompt_words: int | None = None,
  name: str | None = None,
) -> str:
  """As `demo_ende`, for language modelling of the English: texts of four sentences.

  `prompt_words` is `language_modeling.PROMPT_WORDS` where None. `inputs` are a text's
  first `prompt_words` words, `targets` the rest; see
  `specdec_t5x.data.language_modeling`.
  """
  sizes = {"train": train_size, "validation": validation_size, "test": test_size}
  _check_sizes(sizes, seed)
  if prompt_words is None:
    prompt_words = language_modeling.PROMPT_WORDS
  if name is None:
    settings = (sizes, seed, prompt_words)
    is_default = settings == (LM_SIZES, 0, language_modeling.PROMPT_WORDS)
    name = _name("demo_synthetic_lm", vocabulary, settings, is_default)
  return language_modeling.register_texts(
    name,
    {split: ("synthetic", split, size, seed) for split, size in sizes.items()},
    lambda origin: translation.english_texts(*origin[1:]),
    vocabulary,
    prompt_words,
  )


def _register(
  base: str,
  rows: RowsFn,
  sizes: dict[str, int],
  seed: int,
  prefix: str,
  metric: str,
  vocabulary: seqio.Vocabulary,
  name: str | None,
  is_default: bool,
) -> str:
  _check_sizes(sizes, seed)
  origin = ("synthetic", base, *sizes.items(), seed)
  if name is None:
    name = _name(base, vocabulary, origin, is_default)
  steps = (registry.AddPrefix(("source", "target"), prefix), *registry.TOKENS)
  spec = registry.TaskSpec(origin, steps, vocabulary, metric)

  def columns(split: str) -> registry.Columns:
    parts = from_texts.parts_of(split, sizes)
    found = [rows(name, sizes[name], origin[-1])[part] for name, part in parts]
    sources, targets = zip(*itertools.chain(*found), strict=True)
    return {"source": list(sources), "target": list(targets)}

  def dataset_fn(
    split: str, shuffle_files: bool = False, seed: int | None = None
  ) -> tf.data.Dataset:
    # Tensors, so that the iterator's position can be saved in a checkpoint, as in
    # `data.from_texts`.
    dataset = tf.data.Dataset.from_tensor_slices(columns(split))
    size = from_texts.count_of(split, sizes)
    return dataset.shuffle(size, seed=seed) if shuffle_files else dataset

  source = lambda: from_texts.sliced_source(dataset_fn, sizes)
  count = lambda split: from_texts.count_of(split, sizes)
  texts = registry.Texts(tuple(sizes), count, columns)
  return registry.register(name, spec, source, texts)


def _check_sizes(sizes: Mapping[str, int], seed: int) -> None:
  for split, size in sizes.items():
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
      raise ValueError(
        f"The number of {split} examples is {size!r}, expected an integer from 1 up."
      )
  if not isinstance(seed, int) or isinstance(seed, bool):
    raise ValueError(f"seed is {seed!r}, expected an integer.")


def _name(
  base: str, vocabulary: seqio.Vocabulary, settings: tuple, is_default: bool
) -> str:
  """Returns the task's name, with suffixes for what is not the default."""
  name = registry.name_with_vocabulary(base, vocabulary)
  if is_default:
    return name
  return f"{name}_s{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"
