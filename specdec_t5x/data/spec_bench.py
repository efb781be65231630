"""Spec-Bench's prompts: what papers on speculative decoding compare methods on.

480 instructions: translation, summarisation, questions, mathematics, generation from
retrieved texts, and MT-bench's conversations, of which the first turn is taken. Source:
Xia et al., "Unlocking Efficiency in Large Language Model Inference" (arXiv 2401.07851),
section 6; github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl.
"""

from __future__ import annotations

import json

from etils import epath, epy

from specdec_t5x.data import from_texts, registry, text_files

with epy.lazy_imports():
  import seqio

GROUPS = ("translation", "summarization", "qa", "math_reasoning", "rag")
MT_BENCH = "mt_bench"
# T5X writes features of such names into its results.
CATEGORY = "category_pretokenized"


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
  if not epath.Path(file).exists():
    raise ValueError(
      f"Spec-Bench's file {file} is not there. Get data/spec_bench/question.jsonl of "
      "github.com/hemingkx/Spec-Bench, and give its path (SPEC_BENCH_FILE in "
      "configs/spec_instructions.gin)."
    )
  found = {group for _, group, _ in _read(file)}
  origins = {"test": ("spec_bench", file, None)}
  origins |= {group: ("spec_bench", file, group) for group in sorted(found)}
  return from_texts.register(name, origins, _columns, registry.TOKENS, vocabulary)


def prompts(file: str) -> list[tuple[str, str]]:
  """Returns each prompt with its group.

  Raises:
    ValueError: where the file is not Spec-Bench's.
  """
  return [(text, group) for text, group, _ in _read(file)]


def _columns(origin: tuple) -> from_texts.Columns:
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
