"""Language modelling for decoder-only models: the first words, and how they go on.

Importing this module registers `lm1b` with T5's vocabulary and prompts of five words;
it reads no file. `inputs` are a text's first `prompt_words` words and `targets` the
rest, up to the end of sequence; nothing comes between the two, as
seqio.PrefixLMFeatureConverter and t5x.models.DecoderOnlyModel want it.

A word is what stands between ASCII white space. A text without a word after its prompt
can't be continued, so it is left out: with prompt_words = 0 those are the empty texts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf
from absl import logging

from specdec_t5x.core.checks import is_whole
from specdec_t5x.data import from_texts, registry, text_files

# tensorflow-datasets 4.9.10 knows exactly this version.
LM1B_TFDS = "lm1b:1.1.0"

PROMPT_WORDS = 5
# The regular expression that finds a prompt is not compiled for many more.
MAX_PROMPT_WORDS = 200
_METRIC = "log_likelihood"  # Texts go on in many ways.


def lm1b(
  vocabulary: seqio.Vocabulary | None = None,
  prompt_words: int = PROMPT_WORDS,
  name: str | None = None,
) -> str:
  """Registers the One Billion Word Benchmark (splits: train, test), returns the name.

  Args:
    vocabulary: T5's where None.
    prompt_words: words of a prompt; 0 generates whole texts.
    name: the task's name; by default `lm1b`, with suffixes for a number of words other
      than five (`_p<words>`) and a vocabulary other than T5's (see
      `registry.name_with_vocabulary`).

  Returns:
    The registered name.

  Raises:
    ValueError: a bad number of words, or the name is taken by another task.
  """
  _check_prompt_words(prompt_words)
  base = "lm1b" if prompt_words == PROMPT_WORDS else f"lm1b_p{prompt_words}"
  return registry.register_tfds(
    base,
    LM1B_TFDS,
    (SplitTexts(prompt_words), *TOKENS),
    vocabulary,
    name,
    metric=_METRIC,
    inputs_end=False,
  )


def language_modeling_from_files(
  name: str,
  files: Mapping[str, str],
  vocabulary: seqio.Vocabulary | None = None,
  prompt_words: int = PROMPT_WORDS,
) -> str:
  """Registers language modelling over text files, a text a line; returns the name.

  Lines without a word after the prompt are left out, with one warning a file.

  Args:
    name: the task's name.
    files: split -> path.
    vocabulary: T5's where None.
    prompt_words: words of a prompt; 0 generates whole texts.

  Returns:
    `name`.

  Raises:
    ValueError: a bad number of words; a file is missing, empty or not UTF-8, or none of
      its lines is long enough; or the name is taken by another task.
  """
  for split, path in files.items():
    if not isinstance(path, str) or not path:
      raise ValueError(f"files[{split!r}] is {path!r}, expected the path of a text.")
  return register_texts(
    name,
    {split: ("texts", path) for split, path in files.items()},
    lambda origin: text_files.read_lines(origin[1]),
    vocabulary,
    prompt_words,
  )


def register_texts(
  name: str,
  origins: Mapping[str, tuple],
  read: Callable[[tuple], Sequence[str]],
  vocabulary: seqio.Vocabulary | None,
  prompt_words: int,
) -> str:
  """Registers language modelling over texts that a function gives, returns the name.

  Args:
    name: the task's name.
    origins: split -> what `read` needs, in a form that compares and prints.
    read: gives the texts of a split; called again whenever a dataset is built.
    vocabulary: T5's where None.
    prompt_words: words of a prompt.

  Returns:
    `name`.

  Raises:
    ValueError: from `read`; no text of a split is long enough; the name is taken.
  """
  _check_prompt_words(prompt_words)
  # gin registers a task again and again; the user reads it once.
  warned = set(origins.values()) if name in seqio.TaskRegistry.names() else set()

  def columns(origin: tuple) -> from_texts.Columns:
    texts = list(read(origin))
    whole = tf.strings.regex_full_match(
      tf.strings.strip(tf.constant(texts, tf.string)), _pattern(prompt_words)
    ).numpy()
    kept = [text for text, is_whole in zip(texts, whole, strict=True) if is_whole]
    _check_left_out(origin, len(texts), len(kept), prompt_words, origin not in warned)
    warned.add(origin)
    return {"text": kept}

  steps = (SplitTexts(prompt_words), *TOKENS)
  return from_texts.register(
    name, origins, columns, steps, vocabulary, _METRIC, inputs_end=False
  )


@dataclasses.dataclass(frozen=True)
class SplitTexts:
  """Makes prompt and continuation of `text`; leaves out texts without a continuation.

  From a dataset of {'text'} it makes one of {'text', 'inputs', 'targets'}, of which the
  last two, joined, are the first; white space at a text's ends is dropped.

  Attributes:
    prompt_words: words of a prompt.
  """

  prompt_words: int

  def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of texts that are split."""
    pattern = _pattern(self.prompt_words)

    def split(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      text = tf.strings.strip(example["text"])
      part = lambda group: tf.strings.regex_replace(text, pattern, group)
      return {"text": text, "inputs": part(r"\1"), "targets": part(r"\2")}

    def can_go_on(example: dict[str, tf.Tensor]) -> tf.Tensor:
      return tf.strings.regex_full_match(tf.strings.strip(example["text"]), pattern)

    parallel = tf.data.AUTOTUNE
    return dataset.filter(can_go_on).map(split, num_parallel_calls=parallel)


def tokenize_as_one(
  dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
  """Splits the tokens of the whole text where its prompt ends.

  So inputs and targets, joined, are the text's own tokens. Only where a piece crosses
  the prompt's end, which takes a vocabulary with pieces of several words, are the two
  texts tokenised apart.
  """
  encode = output_features["targets"].vocabulary.encode_tf

  def tokenize(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    whole, prompt = encode(example["text"]), encode(example["inputs"])
    length = tf.size(prompt)
    # `whole[:length]` is shorter than the prompt where it ends before.
    starts = tf.logical_and(
      length <= tf.size(whole),
      tf.reduce_all(whole[:length] == prompt[: tf.size(whole)]),
    )
    rest = tf.cond(starts, lambda: whole[length:], lambda: encode(example["targets"]))
    return {
      "inputs": prompt,
      "targets": rest,
      "inputs_pretokenized": example["inputs"],
      "targets_pretokenized": example["targets"],
    }

  return dataset.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE)


def keep_end_of_prompt(
  dataset: tf.data.Dataset, sequence_length: Mapping[str, int] | None
) -> tf.data.Dataset:
  """Cuts a prompt that is too long at its start: targets go on where it ends."""
  length = (sequence_length or {}).get("inputs")
  if not length:
    return dataset
  cut = lambda example: {**example, "inputs": example["inputs"][-length:]}
  return dataset.map(cut, num_parallel_calls=tf.data.AUTOTUNE)


# Tokens of prompt and continuation, and EOS after the continuation.
TOKENS = (
  tokenize_as_one,
  seqio.CacheDatasetPlaceholder(),
  keep_end_of_prompt,
  # Not after trimming: a text that is cut does not end there.
  seqio.preprocessors.append_eos,
)


def _pattern(prompt_words: int) -> str:
  """Matches a stripped text, in two groups: prompt, white space and continuation."""
  if prompt_words == 0:
    return r"(?s)()(.+)"
  return rf"(?s)((?:\S+\s+){{{prompt_words - 1}}}\S+)(\s+.+)"


def _check_prompt_words(prompt_words: int) -> None:
  if not is_whole(prompt_words, 0) or prompt_words > MAX_PROMPT_WORDS:
    raise ValueError(
      f"prompt_words is {prompt_words!r}, expected a whole number from 0 (no prompt) "
      f"to {MAX_PROMPT_WORDS}."
    )


def _check_left_out(
  origin: tuple, total: int, kept: int, prompt_words: int, warn: bool
) -> None:
  """Raises where nothing is kept; else warns of texts that are left out."""
  if not kept:
    raise ValueError(
      f"None of the {total} texts of {origin} has more than {prompt_words} words, so "
      "there is nothing after a prompt. Lower prompt_words, or give longer lines."
    )
  if warn and kept < total:
    logging.warning(
      "%d of the %d texts of %s have no more than %d words and are left out.",
      total - kept,
      total,
      origin,
      prompt_words,
    )


lm1b()
