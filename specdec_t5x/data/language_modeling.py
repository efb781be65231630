"""Language modelling for decoder-only models: continuations of the first words.

Importing this module registers `lm1b` with T5's vocabulary and prompts of five words.
The import reads no file. `inputs` are a text's first `prompt_words` words, and
`targets` are the remaining words and EOS. There is no token between inputs and targets,
as seqio.PrefixLMFeatureConverter and t5x.models.DecoderOnlyModel expect.

ASCII white space separates words. Texts without a word after the prompt have no
continuation and are omitted. With prompt_words = 0, only empty texts are omitted.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import seqio
import tensorflow as tf
from absl import logging

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.data import registry, text_files

PROMPT_WORDS = 5
# The regular expression for prompts does not compile with many more words.
MAX_PROMPT_WORDS = 200
_METRIC = "log_likelihood"  # A text has many valid continuations.


def lm1b(
  vocabulary: seqio.Vocabulary | None = None,
  prompt_words: int = PROMPT_WORDS,
  name: str | None = None,
) -> str:
  """Registers the One Billion Word Benchmark (splits: train, test), returns the name.

  Args:
    vocabulary: the vocabulary; None means T5's.
    prompt_words: number of words of a prompt; 0 generates whole texts.
    name: the task's name; by default `lm1b`, with suffixes for a number of words other
      than five (`_p<words>`) and for a vocabulary other than T5's (see
      `registry.register_tfds`).

  Raises:
    ValueError: if the number of words is invalid, or another task has the name.
  """
  base = "lm1b" if prompt_words == PROMPT_WORDS else f"lm1b_p{prompt_words}"
  dataset = "lm1b:1.1.0"  # tensorflow-datasets 4.9.10 knows exactly this version.
  step = SplitTexts(prompt_words)
  return registry.register_tfds(base, dataset, step, vocabulary, name, _METRIC, _TOKENS)


def language_modeling_from_files(
  name: str,
  files: Mapping[str, str],
  vocabulary: seqio.Vocabulary | None = None,
  prompt_words: int = PROMPT_WORDS,
) -> str:
  """Registers language modelling over text files, and returns the name.

  Each line is a text. Lines without a word after the prompt are omitted, with one
  warning per file.

  Args:
    name: the task's name.
    files: split -> path.
    vocabulary: the vocabulary; None means T5's.
    prompt_words: number of words of a prompt; 0 generates whole texts.

  Raises:
    ValueError: if the number of words is invalid; a file is missing, empty or not
      UTF-8, or has no line that is long enough; or another task has the name.
  """
  split_texts = SplitTexts(prompt_words)

  def read(origin: tuple[str, str]) -> registry.Columns:
    _, path = origin
    texts = text_files.read_lines(path)
    kept = list(itertools.compress(texts, split_texts.continues(texts).numpy()))
    if not kept:
      raise ValueError(
        f"Texts must have more than prompt_words={prompt_words} words, but the "
        f"{len(texts)} texts of {path} are shorter. Lower prompt_words, or give longer "
        "lines."
      )
    if len(kept) < len(texts):
      _warn_once(
        f"{len(texts) - len(kept)} of the {len(texts)} texts of {path} have no more "
        f"than {prompt_words} words and are left out."
      )
    return {"text": kept}

  origins = {split: ("texts", path) for split, path in files.items()}
  return registry.register_texts(
    name, origins, read, split_texts, vocabulary, _METRIC, _TOKENS
  )


# gin registers a task several times, but the user sees a warning only once.
_warn_once = functools.cache(logging.warning)


@dataclasses.dataclass(frozen=True)
class SplitTexts:
  """Splits `text` into prompt and continuation; omits texts without a continuation.

  The dataset of {'text'} becomes a dataset of {'text', 'inputs', 'targets'}. 'inputs'
  and 'targets' concatenated are 'text'. White space at a text's ends is removed.
  """

  prompt_words: int

  def __post_init__(self):
    if not is_whole(self.prompt_words, 0) or self.prompt_words > MAX_PROMPT_WORDS:
      raise ValueError(
        "prompt_words must be a whole number from 0 (no prompt) to "
        f"{MAX_PROMPT_WORDS}, got {self.prompt_words!r}."
      )

  @property
  def pattern(self) -> str:
    """A pattern of a stripped text with two groups: prompt, and the remaining text."""
    if self.prompt_words == 0:
      return r"(?s)()(.+)"
    return rf"(?s)((?:\S+\s+){{{self.prompt_words - 1}}}\S+)(\s+.+)"

  def continues(self, texts: list[str] | tf.Tensor) -> tf.Tensor:
    """Returns whether each text has a word after the prompt."""
    return tf.strings.regex_full_match(tf.strings.strip(texts), self.pattern)

  def __call__(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset of split texts."""

    def split(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
      text = tf.strings.strip(example["text"])
      return {
        "text": text,
        "inputs": tf.strings.regex_replace(text, self.pattern, r"\1"),
        "targets": tf.strings.regex_replace(text, self.pattern, r"\2"),
      }

    kept = dataset.filter(lambda example: self.continues(example["text"]))
    return kept.map(split, num_parallel_calls=tf.data.AUTOTUNE)


def _tokenize_as_one(
  dataset: tf.data.Dataset, output_features: Mapping[str, seqio.Feature]
) -> tf.data.Dataset:
  """Splits the tokens of the whole text at the end of the prompt.

  Inputs and targets concatenated are therefore the text's tokens. If a piece crosses
  the prompt's end, prompt and continuation are tokenised separately. Only vocabularies
  with pieces of several words have such pieces.
  """
  encode = output_features["targets"].vocabulary.encode_tf

  def tokenize(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    text = encode(example["text"])
    prompt = encode(example["inputs"])
    length = tf.size(prompt)
    # Padded, because a text may have fewer tokens than the prompt alone.
    start = tf.pad(text, [[0, length]], constant_values=-1)[:length]
    targets = tf.cond(
      tf.reduce_all(start == prompt),
      lambda: text[length:],
      lambda: encode(example["targets"]),
    )
    return {
      "inputs": prompt,
      "targets": targets,
      "inputs_pretokenized": example["inputs"],
      "targets_pretokenized": example["targets"],
    }

  return dataset.map(tokenize, num_parallel_calls=tf.data.AUTOTUNE)


# Steps to the tokens of prompt and continuation, with EOS after the continuation.
_TOKENS = (
  _tokenize_as_one,
  seqio.CacheDatasetPlaceholder(),
  # A long prompt is truncated at the start, because targets continue the prompt's end.
  seqio.preprocessors.truncate_inputs_left,
  # EOS comes before trimming, because a truncated text does not end at the cut.
  seqio.preprocessors.append_eos,
)


lm1b()
