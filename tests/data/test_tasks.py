"""Tasks over files: contents, order, shards, checkpoints, registration; vocabularies.

tests/e2e registers the tasks with gin. tests/e2e/test_m30k.py compares real tokens with
upstream's tokens.
"""

import gzip
import json

import pytest
import seqio
import tensorflow as tf

from specdec_t5x.data import tasks, vocabularies
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary
from tests import real_data
from tests.data.conftest import examples

BYTES = seqio.ByteVocabulary()


@pytest.fixture
def files(write):
  source = write("x.en", "".join(f"line {n}\n" for n in range(7)))
  target = write("x.de", "".join(f"Zeile {n}\r\n" for n in range(7)))
  return {"test": (source, target), "predict": (source, None)}


@pytest.fixture
def task(files):
  """Returns the name of a task over the files."""
  return tasks.translation_from_files("t", files, vocabulary=BYTES)


def texts(rows, key="targets_pretokenized"):
  return [row[key].decode() for row in rows]


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
    (ADDED, "", ADDED),
    (ADDED, f"He said: {ADDED}a man", f"{ADDED}He said: {ADDED}a man"),
    ("<2de> ", "<2de> a man", "<2de> a man"),
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


def test_iterator_can_be_checkpointed(task, tmp_path):
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
  seqio.TaskRegistry.remove(name)
  source = seqio.get_mixture_or_task("wmt14_ende").source
  seqio.TaskRegistry.add(name, source=source, output_features={})
  with pytest.raises(ValueError, match="a task of another package"):
    tasks.translation_from_files("t", files, vocabulary=BYTES)


def test_files_are_checked_when_registered_and_read(files, write):
  bad = {"test": (files["test"][0], write("short", "one\n"))}
  with pytest.raises(ValueError, match=r"has 7 lines .* has 1"):
    tasks.translation_from_files("t", bad, vocabulary=BYTES)
  assert "t" not in seqio.TaskRegistry.names()
  with pytest.raises(ValueError, match="got an empty dict"):
    tasks.translation_from_files("t", {}, vocabulary=BYTES)
  name = tasks.translation_from_files("t", files, vocabulary=BYTES)
  for file in ("x.en", "x.de"):
    write(file, "a\nb\n")
  with pytest.raises(ValueError, match=r"had 7 examples .* has 2 now"):
    examples(name)


def test_records(write):
  rows = [{"q": "what", "a": "that"}, {"q": "who", "a": "me"}]
  files = {"test": write("r.jsonl", "\n".join(map(json.dumps, rows)))}
  name = tasks.from_records("r", files, "q", "a", "ask: ", "rouge", BYTES)
  assert texts(examples(name), "inputs_pretokenized") == ["ask: what", "ask: who"]
  assert texts(examples(name)) == ["that", "me"]
  metrics = seqio.get_mixture_or_task(name).metric_fns
  assert [f.__name__ for f in metrics] == ["rouge"]
  blind = tasks.from_records("blind", files, "q", None, "", vocabulary=BYTES)
  assert texts(examples(blind)) == ["", ""]
  with pytest.raises(ValueError, match="got 'f1'"):
    tasks.from_records("bad", files, "q", "a", "", "f1", BYTES)
  pair = {"test": write("p.csv", "en,de\nyes,ja\n")}
  name = tasks.translation_from_records("p", pair, vocabulary=BYTES)
  inputs = texts(examples(name), "inputs_pretokenized")
  assert inputs == ["translate English to German: yes"]
  article = {"test": write("a.csv", "article,highlights\nlong,short\n")}
  name = tasks.summarization_from_records("a", article, vocabulary=BYTES)
  assert texts(examples(name), "inputs_pretokenized") == ["summarize: long"]


def test_tfds_tasks_are_registered_and_named_by_vocabulary():
  assert tasks.wmt14_ende() == "wmt14_ende"
  assert tasks.wmt_t2t_ende(vocabularies.T5_VOCABULARY) == "wmt_t2t_ende"
  assert tasks.cnn_dailymail(BYTES, name="mine") == "mine"
  other = SentencePieceVocabulary("some/path.model", 0)
  name = tasks.cnn_dailymail(other)
  # sha256 of "SentencePieceVocabulary|some/path.model|0"
  assert name == "cnn_dailymail_v71a6e5ba"
  assert name == tasks.cnn_dailymail(SentencePieceVocabulary("some/path.model", 0))
  assert name != tasks.cnn_dailymail(SentencePieceVocabulary("some/path.model", 1))
  feature = seqio.get_mixture_or_task(name).output_features["targets"]
  assert feature.vocabulary == other
  assert feature.add_eos
  with pytest.raises(ValueError, match="pass `name`"):
    tasks.xsum(seqio.PassThroughVocabulary(4))


def test_humaneval_keeps_the_code_unchanged(write):
  content = ""
  for n, code in enumerate(("    return 1\n", "\n    return 2\n")):
    problem = {"task_id": f"HumanEval/{n}", "prompt": f"def f{n}():\n"}
    content += json.dumps({**problem, "canonical_solution": code}) + "\n"
  path = write("HumanEval.jsonl.gz", gzip.compress(content.encode(), mtime=0))
  name = tasks.humaneval_from_file("code", path, BYTES)
  assert texts(examples(name), "inputs_pretokenized") == ["def f0():\n", "def f1():\n"]
  assert texts(examples(name)) == ["    return 1\n", "\n    return 2\n"]
  assert not seqio.get_mixture_or_task(name).metric_fns
  assert tasks.humaneval_from_file("code", path, seqio.ByteVocabulary()) == name
  with pytest.raises(ValueError, match=r"nowhere does not exist\. Get data/HumanEval"):
    tasks.humaneval_from_file("other", "nowhere", BYTES)


def test_real_humaneval():
  path = str(real_data.path("humaneval/HumanEval.jsonl"))
  name = tasks.humaneval_from_file("humaneval", path, BYTES)
  found = examples(name)
  with open(path, encoding="utf-8") as file:
    problems = [json.loads(line) for line in file]
  assert len(found) == 164
  for example, problem in zip(found, problems, strict=True):
    assert example["inputs"].tolist() == [*BYTES.encode(problem["prompt"]), 1]
    solution = problem["canonical_solution"]
    assert example["targets"].tolist() == [*BYTES.encode(solution), 1]


def test_t5_vocabulary():
  vocabulary = vocabularies.T5_VOCABULARY  # The bucket is not read.
  assert vocabulary.sentencepiece_model_file.startswith("gs://t5-data/vocabs/cc_all")
  assert vocabulary.extra_ids == 100
  path = str(real_data.path("t5_spiece/spiece.model"))
  vocabulary = vocabularies.sentencepiece_vocabulary(path, 100)
  assert vocabulary.vocab_size == 32_100
  assert vocabulary.encode("<extra_id_0>") == [32_099]
