"""seqio tasks over the synthetic demo corpora, generated in memory on use.

As in `specdec_t5x.data.tasks`, a function registers a task and returns the task's name:

  MIXTURE_OR_TASK_NAME = @tasks.demo_ende()
  tasks.demo_ende:
    vocabulary = @vocabulary.demo_vocabulary()

The names contain "synthetic", because scores are no results on real data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from etils import epy

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.data import from_texts, registry, tasks
from specdec_t5x.demo.corpora import news, translation

with epy.lazy_imports():
  import seqio

  from specdec_t5x.data import language_modeling

ENDE_SIZES = {"train": 60_000, "validation": 500, "test": 500}
CNNDM_SIZES = {"train": 8_000, "validation": 200, "test": 200}
# A text has four sentences, so the numbers of sentences equal ENDE_SIZES.
LM_SIZES = {"train": 15_000, "validation": 125, "test": 125}

# The rows (by split, size and seed), prefix, metric and default sizes of each task.
_TASKS = {
  "ende": (translation.rows, tasks.TRANSLATE_ENDE, "bleu", ENDE_SIZES),
  "cnndm": (news.rows, tasks.SUMMARIZE, "rouge", CNNDM_SIZES),
}


def demo_ende(
  vocabulary: seqio.Vocabulary,
  train_size: int = ENDE_SIZES["train"],
  validation_size: int = ENDE_SIZES["validation"],
  test_size: int = ENDE_SIZES["test"],
  seed: int = 0,
  name: str | None = None,
) -> str:
  """Registers the synthetic English-German task and returns the task's name.

  Args:
    vocabulary: the vocabulary of inputs and targets, as `vocabulary.demo_vocabulary()`.
    train_size: the number of training pairs.
    validation_size: the number of validation pairs.
    test_size: the number of test pairs.
    seed: the same seed and sizes give the same pairs on every machine.
    name: the task's name; by default `demo_synthetic_ende`, with suffixes for the
      vocabulary and for sizes or a seed other than the defaults.

  Returns:
    The registered name.

  Raises:
    ValueError: if a size is not a positive integer, or if the name is taken.
  """
  sizes = {"train": train_size, "validation": validation_size, "test": test_size}
  return _register("ende", sizes, seed, vocabulary, name)


def demo_cnndm(
  vocabulary: seqio.Vocabulary,
  train_size: int = CNNDM_SIZES["train"],
  validation_size: int = CNNDM_SIZES["validation"],
  test_size: int = CNNDM_SIZES["test"],
  seed: int = 0,
  name: str | None = None,
) -> str:
  """Like `demo_ende`, for synthetic news articles with highlights, scored by ROUGE."""
  sizes = {"train": train_size, "validation": validation_size, "test": test_size}
  return _register("cnndm", sizes, seed, vocabulary, name)


def demo_lm(
  vocabulary: seqio.Vocabulary,
  train_size: int = LM_SIZES["train"],
  validation_size: int = LM_SIZES["validation"],
  test_size: int = LM_SIZES["test"],
  seed: int = 0,
  prompt_words: int | None = None,
  name: str | None = None,
) -> str:
  """Like `demo_ende`, for language modelling of English texts of four sentences.

  `inputs` are a text's first `prompt_words` words, and `targets` are the other words;
  see `specdec_t5x.data.language_modeling`. The default of `prompt_words` is
  `language_modeling.PROMPT_WORDS`.
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
  task: str,
  sizes: dict[str, int],
  seed: int,
  vocabulary: seqio.Vocabulary,
  name: str | None,
) -> str:
  rows, prefix, metric, usual = _TASKS[task]
  base = f"demo_synthetic_{task}"
  _check_sizes(sizes, seed)
  origin = ("synthetic", base, *sizes.items(), seed)
  if name is None:
    name = _name(base, vocabulary, origin, (sizes, seed) == (usual, 0))
  steps = (registry.AddPrefix(("source", "target"), prefix), *registry.TOKENS)
  spec = registry.TaskSpec(origin, steps, vocabulary, metric)

  def part_of(split: str, part: slice) -> registry.Columns:
    sources, targets = zip(*rows(split, sizes[split], seed)[part], strict=True)
    return {"source": list(sources), "target": list(targets)}

  return from_texts.register_parts(name, spec, part_of, sizes)


def _check_sizes(sizes: Mapping[str, int], seed: int) -> None:
  for split, size in sizes.items():
    if not is_whole(size, 1):
      raise ValueError(
        f"The number of {split} examples must be a whole number of at least 1, got "
        f"{size!r}."
      )
  if not isinstance(seed, int) or isinstance(seed, bool):
    raise ValueError(f"seed must be a whole number, got {seed!r}.")


def _name(
  base: str, vocabulary: seqio.Vocabulary, settings: tuple, is_default: bool
) -> str:
  """Returns the task's name, with suffixes for settings other than the defaults."""
  name = registry.name_with_vocabulary(base, vocabulary)
  if is_default:
    return name
  return f"{name}_s{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"
