"""Tasks over files and TFDS: contents, order, shards, checkpoints, vocabularies."""

import json

import pytest
import seqio
import tensorflow as tf

from specdec_t5x.data import (
  language_modeling,
  spec_bench,
  tasks,
  vocabularies,
)
from specdec_t5x.t5x_bridge import writer
from specdec_t5x.vocabularies.opening import open_vocabulary
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary
from tests import real_data, tfds_folders
from tests.data.conftest import examples
from tests.vocabularies import made

BYTES = seqio.ByteVocabulary()


@pytest.fixture
def files(write):
  source = write("x.en", "".join(f"line {n}\n" for n in range(7)))
  target = write("x.de", "".join(f"Zeile {n}\r\n" for n in range(7)))
  return {"test": (source, target), "predict": (source, None)}


@pytest.fixture
def task(files):
  return tasks.translation_from_files("t", files, vocabulary=BYTES)


def texts(rows, key="targets_pretokenized"):
  return [row[key].decode() for row in rows]


def lines_of(rows):
  return "".join(json.dumps(row) + "\n" for row in rows)


def test_translation_from_files(files):
  name = tasks.translation_from_files("t", files, "English", "Latin", BYTES)
  first = examples(name)[0]
  inputs = "translate English to Latin: line 0"
  assert texts([first], "inputs_pretokenized") == [inputs]
  assert first["inputs"].tolist() == [*BYTES.encode(inputs), 1]
  assert first["targets"].tolist() == [*BYTES.encode("Zeile 0"), 1]
  assert texts(examples(name)) == [f"Zeile {n}" for n in range(7)]
  task = seqio.get_mixture_or_task(name)
  assert {s: task.num_input_examples(s) for s in task.splits} == dict.fromkeys(files, 7)
  assert [f.__name__ for f in task.metric_fns] == ["bleu"]


ADDED = "translate English to German: "


@pytest.mark.parametrize(
  ("prefix", "source", "inputs"),
  [
    (ADDED, "a man", f"{ADDED}a man"),
    (ADDED, f"{ADDED}a man", f"{ADDED}a man"),
    (ADDED, f"{ADDED}{ADDED}a man", f"{ADDED}{ADDED}a man"),
    (ADDED, ADDED, ADDED),
    (ADDED, f"He said: {ADDED}a man", f"{ADDED}He said: {ADDED}a man"),
    ("Übersetze: ", "Übersetze: ein Mann", "Übersetze: ein Mann"),
    ("Übersetze: ", "Übersetze ein", "Übersetze: Übersetze ein"),
    ("", "a man", "a man"),
  ],
)
def test_a_prefix_is_added_once(prefix, source, inputs, write):
  path = write("x.en", f"a\n{source}\n")
  name = tasks.translation_from_files(
    "t", {"test": (path, None)}, vocabulary=BYTES, prefix=prefix
  )
  assert texts(examples(name), "inputs_pretokenized")[1] == inputs


def test_tasks_without_references_have_no_metric_and_eos_survives_trimming(files):
  only = {"predict": files["predict"]}
  name = tasks.translation_from_files("blind", only, vocabulary=BYTES)
  assert [row["targets"].tolist() for row in examples(name, "predict")] == [[1]] * 7
  assert not seqio.get_mixture_or_task(name).metric_fns
  name = tasks.translation_from_files("t", files, vocabulary=BYTES)
  row = examples(name, sequence_length={"inputs": 9, "targets": 4})[0]
  assert row["inputs"].tolist() == [*BYTES.encode("translat"), 1]
  assert row["targets"].tolist() == [*BYTES.encode("Zei"), 1]


@pytest.mark.parametrize(
  ("split", "numbers"),
  [
    ("test[:2]", [0, 1]),
    ("test[5:]", [5, 6]),
    ("test[-1:]", [6]),
    ("test[:50%]", [0, 1, 2, 3]),
    ("test[6:]+test[:1]", [6, 0]),
  ],
)
def test_slices_of_a_split_follow_tfds(task, split, numbers):
  assert texts(examples(task, split)) == [f"Zeile {n}" for n in numbers]
  assert seqio.get_mixture_or_task(task).num_input_examples(split) == len(numbers)


def test_order_of_shards_and_of_shuffling(task):
  shards = [
    texts(examples(task, shard_info=seqio.ShardInfo(index, 3))) for index in range(3)
  ]
  assert shards == [[f"Zeile {n}" for n in range(i, 7, 3)] for i in range(3)]
  once, again = (texts(examples(task, shuffle=True, seed=3)) for _ in range(2))
  assert once == again
  assert sorted(once) == texts(examples(task)) != once
  with pytest.raises(ValueError, match=r"'test\[2:2\]' holds no .*'test': 7"):
    examples(task, "test[2:2]")


@pytest.mark.parametrize("kind", ["bytes", "pieces", "folder"])
def test_iterator_can_be_checkpointed(files, vocabulary_path, kind, tmp_path):
  """Upstream's `infer` saves it, so no operation of a vocabulary may have a state."""
  vocabulary = BYTES if kind == "bytes" else SentencePieceVocabulary(vocabulary_path, 0)
  if kind == "folder":
    made.byte_level(tmp_path / "folder")
    vocabulary = open_vocabulary(tmp_path / "folder")
  task = tasks.translation_from_files(kind, files, vocabulary=vocabulary)
  dataset = seqio.get_mixture_or_task(task).get_dataset(None, "test", shuffle=False)
  iterator = iter(dataset)
  for _ in range(3):
    next(iterator)
  path = tf.train.Checkpoint(ds=iterator).save(str(tmp_path / "ckpt"))
  restored = iter(dataset)
  tf.train.Checkpoint(ds=restored).restore(path).assert_consumed()
  remaining = [row["targets_pretokenized"].numpy().decode() for row in restored]
  assert remaining == [f"Zeile {n}" for n in range(3, 7)]


def test_equal_arguments_give_the_same_task_and_other_arguments_are_refused(files):
  name = tasks.translation_from_files("t", files, vocabulary=BYTES)
  task = seqio.get_mixture_or_task(name)
  same = {split: list(paths) for split, paths in reversed(files.items())}
  assert tasks.translation_from_files("t", same, vocabulary=seqio.ByteVocabulary())
  assert seqio.get_mixture_or_task(name) is task
  with pytest.raises(ValueError, match=r"'t' is already registered(.|\n)*Romanian"):
    tasks.translation_from_files("t", files, "English", "Romanian", BYTES)
  with pytest.raises(ValueError, match="other arguments"):
    tasks.translation_from_files("t", files, vocabulary=seqio.ByteVocabulary(5))
  with pytest.raises(ValueError, match="other arguments"):
    tasks.translation_from_files("t", {"test": files["test"]}, vocabulary=BYTES)
  seqio.TaskRegistry.add("theirs", source=task.source, output_features={})
  with pytest.raises(ValueError, match="a task of another package"):
    tasks.translation_from_files("theirs", files, vocabulary=BYTES)


def test_files_are_checked_when_registered_and_read(files, write):
  """tests/errors/cases.toml has files of unequal length."""
  with pytest.raises(ValueError, match="got an empty dict"):
    tasks.translation_from_files("t", {}, vocabulary=BYTES)
  name = tasks.translation_from_files("t", files, vocabulary=BYTES)
  for file in ("x.en", "x.de"):
    write(file, "a\nb\n")
  with pytest.raises(ValueError, match=r"had 7 examples .* has 2 now"):
    examples(name)


def test_records(write):
  rows = [{"q": "what", "a": "that"}, {"q": "def f():\n", "a": "\n  return 2\n"}]
  files = {"test": write("r.jsonl", lines_of(rows))}
  name = tasks.from_records("r", files, "q", "a", "ask: ", "rouge", BYTES)
  inputs = ["ask: what", "ask: def f():\n"]
  assert texts(examples(name), "inputs_pretokenized") == inputs
  assert texts(examples(name)) == ["that", "\n  return 2\n"]
  metrics = seqio.get_mixture_or_task(name).metric_fns
  assert [f.__name__ for f in metrics] == ["rouge"]
  blind = tasks.from_records("blind", files, "q", None, "", vocabulary=BYTES)
  assert texts(examples(blind)) == ["", ""]
  with pytest.raises(ValueError, match="got 'f1'"):
    tasks.from_records("bad", files, "q", "a", "", "f1", BYTES)


def test_tfds_tasks_are_registered_and_named_by_vocabulary():
  assert tasks.wmt14_ende() == "wmt14_ende"
  assert tasks.wmt_t2t_ende(vocabularies.T5_VOCABULARY) == "wmt_t2t_ende"
  other = SentencePieceVocabulary("some/path.model", 0)
  name = tasks.cnn_dailymail(other)
  # sha256 of "SentencePieceVocabulary|some/path.model|0"
  assert name == "cnn_dailymail_v71a6e5ba"
  assert name == tasks.cnn_dailymail(SentencePieceVocabulary("some/path.model", 0))
  assert name != tasks.cnn_dailymail(SentencePieceVocabulary("some/path.model", 1))
  feature = seqio.get_mixture_or_task(name).output_features["targets"]
  assert feature.vocabulary == other
  assert feature.add_eos
  with pytest.raises(ValueError, match=r"other arguments(.|\n)*another name"):
    tasks.cnn_dailymail(BYTES, name=name)


def test_blank_and_enormous_lines_are_valid_inputs(write):
  enormous = "the old dog " * 100_000
  source = write("x.en", f"a dog\n\n{enormous}\n \n")
  files = {"test": (source, write("x.de", "a cat\n\n\nthe red house\n"))}
  name = tasks.translation_from_files("fine", files, vocabulary=BYTES)
  rows = examples(name, sequence_length={"inputs": 8, "targets": 4})
  assert [len(row["inputs"]) for row in rows] == [8] * 4
  assert [len(row["targets"]) for row in rows] == [4, 1, 1, 4]
  assert all(row["inputs"][-1] == row["targets"][-1] == 1 for row in rows)
  assert len(rows[2]["inputs_pretokenized"]) > 1_000_000


# ---- Spec-Bench's prompts, and categories in the results. ----

ROWS = [
  {"question_id": 81, "category": "writing", "turns": ["a dog sees", "again"]},
  {"question_id": 82, "category": "qa", "turns": ["the cat"], "reference": ["x"]},
  {"question_id": 83, "category": "coding", "turns": ["red house\nold man"]},
]


def test_examples_are_first_turns_with_categories(write):
  file = write("question.jsonl", lines_of(ROWS))
  rows = examples(spec_bench.from_file("spec_bench_rows", file, BYTES))
  assert texts(rows, spec_bench.CATEGORY) == ["writing", "qa", "coding"]
  assert rows[0]["inputs"].tolist() == [*BYTES.encode("a dog sees"), 1]
  assert rows[0]["targets"].tolist() == [1]


def test_a_summary_has_every_category(tmp_path):
  aux = dict.fromkeys(writer.COUNTS, 4)
  lines = [
    {"inputs": {spec_bench.CATEGORY: name}, "aux": {**aux, "tokens": tokens}}
    for name, tokens in (("qa", 8), ("rag", 12), ("qa", 16))
  ]
  file = tmp_path / "out.jsonl"
  file.write_text(lines_of(lines))
  summary = writer.summarize([file], alpha_is_mass=True)
  assert summary["tokens"] == 36
  assert {name: x["tokens"] for name, x in summary["categories"].items()} == {
    "qa": 24,
    "rag": 12,
  }
  assert summary["categories"]["qa"]["tokens_per_target_call"]["value"] == 3
  file.write_text(lines_of([{"aux": aux}]))
  assert "categories" not in writer.summarize([file], alpha_is_mass=True)


@pytest.mark.parametrize("rows", [[["a"]], [{"turns": ["a"]}], [{"category": "qa"}]])
def test_files_without_turns_and_category_are_refused(rows, write):
  file = write("question.jsonl", lines_of(rows))
  with pytest.raises(ValueError, match="line 1: expected an object with 'category'"):
    spec_bench.from_file("spec_bench_bad", file, BYTES)


def test_the_real_file_has_480_prompts():
  path = str(real_data.path("spec_bench", "question.jsonl"))
  task = seqio.get_mixture_or_task(spec_bench.from_file("real", path, BYTES))
  assert task.num_input_examples("test") == 480


# ---- The tasks of published datasets read folders of TFDS. ----


def test_xsum(tfds_dir):
  row = {"document": "long text", "summary": "short"}
  tfds_folders.write("xsum", tfds_dir, test=[row])
  name = tasks.xsum(BYTES)
  (row,) = examples(name)
  assert row["inputs_pretokenized"] == b"summarize: long text"
  assert row["targets_pretokenized"] == b"short"
  assert [f.__name__ for f in seqio.get_mixture_or_task(name).metric_fns] == ["rouge"]


def test_lm1b(tfds_dir):
  test = [{"text": text} for text in ("One two three .", "", "Short")]
  train = [{"text": "Four five six"}]
  tfds_folders.write("lm1b", tfds_dir, test=test, train=train)
  name = language_modeling.lm1b(BYTES, prompt_words=1)
  assert name.startswith("lm1b_p1_v")
  (row,) = examples(name)
  assert row["inputs_pretokenized"] == b"One"
  assert row["targets_pretokenized"] == b" two three ."
  (row,) = examples(name, split="train")
  assert row["targets_pretokenized"] == b" five six"
  assert language_modeling.lm1b() == "lm1b"
