"""Spec-Bench's prompts: what papers on speculative decoding compare methods on.

480 instructions: translation, summarisation, questions, mathematics, generation from
retrieved texts, and MT-bench's conversations, of which the first turn is taken. Source:
Xia et al., "Unlocking Efficiency in Large Language Model Inference" (arXiv 2401.07851),
section 6; github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence

import seqio
import tensorflow as tf

from specdec_t5x.data import pairs, registry, text_files

GROUPS = ("translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH = "mt_bench"
# T5X writes features of such names into its results.
CATEGORY = "category_pretokenized"


@dataclasses.dataclass(frozen=True)
class SpecBenchSpec:
  """The task.

  Attributes:
    origin: where the prompts come from, in a form that compares and prints.
    vocabulary: encodes them.
  """

  origin: tuple
  vocabulary: seqio.Vocabulary

  def preprocessors(self) -> Sequence[Callable]:
    """Tokens, and EOS after the prompt."""
    return [
      seqio.preprocessors.tokenize,
      seqio.CacheDatasetPlaceholder(),
      seqio.preprocessors.append_eos_after_trim,
    ]

  def output_features(self) -> Mapping[str, seqio.Feature]:
    """Inputs, and empty targets."""
    feature = seqio.Feature(self.vocabulary, add_eos=True)
    return {"inputs": feature, "targets": feature}

  def metric_fns(self) -> Sequence[Callable]:
    """None: instructions can be followed in many ways."""
    return []

  def describe(self) -> str:
    """Prints the spec without loading its vocabulary."""
    return f"{self.origin}, {registry.describe_vocabulary(self.vocabulary)}"


def from_file(name: str, file: str, vocabulary: seqio.Vocabulary) -> str:
  """Registers Spec-Bench's prompts as a task, and returns its name.

  Splits are `test`, all of them, and each of `GROUPS` and `MT_BENCH`. Results have each
  prompt's category, and `speculation.json` statistics of each.

  Args:
    name: the task's name.
    file: Spec-Bench's question.jsonl.
    vocabulary: of the models.

  Returns:
    `name`.

  Raises:
    ValueError: there is no such file, it is not Spec-Bench's, or the name is taken.
  """
  if not tf.io.gfile.exists(file):
    raise ValueError(
      f"Spec-Bench's file {file} is not there. Get data/spec_bench/question.jsonl of "
      "github.com/hemingkx/Spec-Bench, and give its path (SPEC_BENCH_FILE in "
      "configs/spec_instructions.gin)."
    )
  found = {group for _, group, _ in _read(file)}
  origins = {"test": ("spec_bench", file, None)}
  origins |= {group: ("spec_bench", file, group) for group in sorted(found)}
  origin, make_source = pairs.read_when_used(name, origins, _columns)
  spec = SpecBenchSpec(origin, vocabulary)
  return registry.register(name, spec, make_source)


def prompts(file: str) -> list[tuple[str, str]]:
  """Returns each prompt with its group.

  Raises:
    ValueError: where the file is not Spec-Bench's.
  """
  return [(text, group) for text, group, _ in _read(file)]


def _columns(origin: tuple) -> pairs.Columns:
  _, file, wanted = origin
  rows = [row for row in _read(file) if wanted in (None, row[1])]
  texts, _, categories = (list(column) for column in zip(*rows, strict=True))
  return {"inputs": texts, "targets": [""] * len(rows), CATEGORY: categories}


def _read(file: str) -> list[tuple[str, str, str]]:
  """Returns text, group and category of each prompt."""
  rows = []
  for number, line in enumerate(text_files.read_lines(file), 1):
    try:
      record = json.loads(line)
      text, category = record["turns"][0], record["category"]
    except (ValueError, LookupError, TypeError) as error:
      raise ValueError(
        f"{file}, line {number}: expected an object with 'category' and 'turns', as "
        f"Spec-Bench's question.jsonl has ({type(error).__name__}: {error})."
      ) from error
    rows.append((text, category if category in GROUPS else MT_BENCH, category))
  return rows
