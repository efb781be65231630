"""Spec-Bench's prompts, a common benchmark in papers on speculative decoding.

The prompts are 480 instructions: translation, summarisation, questions, mathematics,
generation from retrieved texts, and the first turns of MT-bench's conversations.
Source: Xia et al., "Unlocking Efficiency in Large Language Model Inference" (arXiv
2401.07851), section 6; github.com/hemingkx/Spec-Bench,
data/spec_bench/question.jsonl.
"""

from __future__ import annotations

import json

from etils import epy

from specdec_t5x.data import registry, text_files

with epy.lazy_imports():
  import seqio

# T5X writes features with the suffix "_pretokenized" into the results.
CATEGORY = "category_pretokenized"


def from_file(name: str, file: str, vocabulary: seqio.Vocabulary) -> str:
  """Registers Spec-Bench's prompts as a task, and returns the task's name.

  The split is `test`. Results have each prompt's category, and `speculation.json` has
  statistics per category.

  Args:
    name: the task's name.
    file: path of Spec-Bench's question.jsonl.
    vocabulary: the models' vocabulary.

  Raises:
    ValueError: if the file is missing or not Spec-Bench's, or another task has the
      name.
  """
  origins = {"test": ("spec_bench", file)}
  return registry.register_texts(name, origins, _columns, None, vocabulary)


def _columns(origin: tuple[str, str]) -> registry.Columns:
  """Returns the prompts and their categories."""
  _, file = origin
  columns = {"inputs": [], "targets": [], CATEGORY: []}
  for number, line in enumerate(text_files.read_lines(file), 1):
    try:
      record = json.loads(line)
      columns["inputs"].append(record["turns"][0])
      columns[CATEGORY].append(record["category"])
    except (ValueError, LookupError, TypeError) as error:
      raise ValueError(
        f"{file}, line {number}: expected an object with 'category' and 'turns', as in "
        f"Spec-Bench's question.jsonl ({type(error).__name__}: {error})."
      ) from error
    columns["targets"].append("")
  return columns
