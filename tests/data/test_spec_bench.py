"""Spec-Bench's prompts as a task: splits by group, and categories in the results."""

import json

import pytest
import seqio

from specdec_t5x.data import spec_bench
from specdec_t5x.t5x_bridge import writer
from tests import real_data
from tests.data.conftest import examples
from tests.t5x_bridge import tiny

ROWS = [
  {"question_id": 81, "category": "writing", "turns": ["a dog sees", "again"]},
  {"question_id": 82, "category": "qa", "turns": ["the cat"], "reference": ["x"]},
  {"question_id": 83, "category": "coding", "turns": ["red house\nold man"]},
]


@pytest.fixture
def vocabulary(tmp_path):
  return seqio.SentencePieceVocabulary(str(tiny.train_vocabulary(tmp_path)), 0)


def write(path, rows):
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def test_splits_are_groups_and_examples_have_categories(vocabulary, tmp_path):
  file = write(tmp_path / "question.jsonl", ROWS)
  name = spec_bench.from_file("spec_bench_rows", file, vocabulary)
  assert spec_bench.from_file("spec_bench_rows", file, vocabulary) == name

  def categories(split):
    return [example[spec_bench.CATEGORY].decode() for example in examples(name, split)]

  assert categories("test") == ["writing", "qa", "coding"]
  assert categories("mt_bench") == ["writing", "coding"]
  assert categories("qa") == ["qa"]
  assert categories("test[1:]") == ["qa", "coding"]
  first = examples(name, "test")[0]
  assert first["inputs"].tolist() == [*vocabulary.encode("a dog sees"), 1]
  assert first["targets"].tolist() == [1]


def test_a_summary_has_every_category(tmp_path):
  aux = dict.fromkeys(writer.COUNTS, 4)
  lines = [
    {"inputs": {spec_bench.CATEGORY: name}, "aux": {**aux, "tokens": tokens}}
    for name, tokens in (("qa", 8), ("rag", 12), ("qa", 16))
  ]
  file = tmp_path / "out.jsonl"
  write(file, lines)
  summary = writer.summarize([file], alpha_is_mass=True)
  assert summary["tokens"] == 36
  assert {name: x["tokens"] for name, x in summary["categories"].items()} == {
    "qa": 24,
    "rag": 12,
  }
  assert summary["categories"]["qa"]["tokens_per_target_call"]["value"] == 3
  write(file, [{"aux": aux}])
  assert "categories" not in writer.summarize([file], alpha_is_mass=True)


@pytest.mark.parametrize("rows", [[["a"]], [{"turns": ["a"]}], [{"category": "qa"}]])
def test_files_without_turns_and_category_are_refused(rows, vocabulary, tmp_path):
  file = write(tmp_path / "question.jsonl", rows)
  with pytest.raises(ValueError, match="line 1: expected an object with 'category'"):
    spec_bench.from_file("spec_bench_bad", file, vocabulary)
  with pytest.raises(ValueError, match=r"no\.jsonl does not exist"):
    spec_bench.from_file("spec_bench_none", "no.jsonl", vocabulary)


def test_the_real_file_has_480_prompts_in_six_groups(vocabulary):
  path = str(real_data.path("spec_bench", "question.jsonl"))
  task = seqio.get_mixture_or_task(spec_bench.from_file("real", path, vocabulary))
  assert {split: task.num_input_examples(split) for split in task.splits} == {
    "test": 480,
    **dict.fromkeys((*spec_bench.GROUPS, spec_bench.MT_BENCH), 80),
  }
