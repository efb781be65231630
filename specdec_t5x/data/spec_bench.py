"""Spec-Bench's prompts, a common benchmark in papers on speculative decoding.

The prompts are 480 instructions: translation, summarisation, questions, mathematics,
generation from retrieved texts, and the first turns of MT-bench's conversations.
Source: Xia et al., "Unlocking Efficiency in Large Language Model Inference" (arXiv
2401.07851), section 6; github.com/hemingkx/Spec-Bench,
data/spec_bench/question.jsonl.
"""

from __future__ import annotations

import json

from etils import epath, epy

from specdec_t5x.data import registry, text_files

with epy.lazy_imports():
  import seqio

GROUPS = ("translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH = "mt_bench"
# T5X writes features with the suffix "_pretokenized" into the results.
CATEGORY = "category_pretokenized"


def from_file(name: str, file: str, vocabulary: seqio.Vocabulary) -> str:
  """Registers Spec-Bench's prompts as a task, and returns the task's name.

  The split `test` has all prompts. The groups in `GROUPS` and `MT_BENCH` are also
  splits. Results have each prompt's category, and `speculation.json` has statistics per
  category.

  Args:
    name: the task's name.
    file: path of Spec-Bench's question.jsonl.
    vocabulary: the models' vocabulary.

  Raises:
    ValueError: if the file is missing or not Spec-Bench's, or another task has the
      name.
  """
  if not epath.Path(file).exists():
    raise ValueError(
      f"Spec-Bench's file {file} does not exist. Get data/spec_bench/question.jsonl of "
      "github.com/hemingkx/Spec-Bench, and give the path (SPEC_BENCH_FILE in "
      "configs/spec_instructions.gin)."
    )
  categories = _columns(("spec_bench", file, None))[CATEGORY]
  groups = {category if category in GROUPS else MT_BENCH for category in categories}
  origins = {"test": ("spec_bench", file, None)}
  origins |= {group: ("spec_bench", file, group) for group in sorted(groups)}
  return registry.register_texts(name, origins, _columns, None, vocabulary)


def _columns(origin: tuple[str, str, str | None]) -> registry.Columns:
  """Returns the prompts of a group and their categories; all prompts for None."""
  _, file, group = origin
  columns = {"inputs": [], "targets": [], CATEGORY: []}
  for number, line in enumerate(text_files.read_lines(file), 1):
    try:
      record = json.loads(line)
      text = record["turns"][0]
      category = record["category"]
    except (ValueError, LookupError, TypeError) as error:
      raise ValueError(
        f"{file}, line {number}: expected an object with 'category' and 'turns', as in "
        f"Spec-Bench's question.jsonl ({type(error).__name__}: {error})."
      ) from error
    if group in (None, category if category in GROUPS else MT_BENCH):
      columns["inputs"].append(text)
      columns["targets"].append("")
      columns[CATEGORY].append(category)
  return columns
