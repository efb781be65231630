"""The synthetic news, the demo's seqio tasks and the demo's vocabulary."""

import os
import pathlib
import re

import pytest
import seqio
import tensorflow as tf

from specdec_t5x.demo import tasks, vocabulary
from specdec_t5x.demo.corpora import news, splits, translation
from tests.data.conftest import _restore_registry  # noqa: F401

SIZES = {"train_size": 300, "validation_size": 5, "test_size": 7}
BYTES = seqio.ByteVocabulary()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  path = str(tmp_path_factory.mktemp("vocabulary") / "demo.model")
  return vocabulary.demo_vocabulary(path, size=1_500, corpora="ende,cnndm")


@pytest.fixture(scope="module")
def articles():
  return news.rows("train", 600)


def test_names_and_figures_of_highlights_are_in_the_article(articles):
  for article, highlights in articles:
    words = set(re.findall(r"[\w'-]+(?:[.,]\d+)?", article))
    for line in highlights.split("\n"):
      assert line.endswith(" .")
      # The first word of a line is always capitalized.
      for name in re.findall(r"(?<=\s)[A-Z]\w+|\d[\d.,-]*\d|\d+", line):
        assert name in words, (name, article)


def test_articles_have_the_intended_size(articles):
  counts = [len(article.split()) for article, _ in articles]
  assert min(counts) > 95
  assert max(counts) < 230
  assert 130 < sum(counts) / len(counts) < 200
  assert {len(text.split("\n")) for _, text in articles} == {2, 3}
  assert len({article for article, _ in articles}) == len(articles)
  assert not any("{" in text for row in articles for text in row)


def test_news_depend_on_the_seed_and_splits_are_disjoint(articles):
  assert list(articles[:50]) == splits.generate(news.article, "train", 50, seed=0)
  assert news.rows("train", 50, 1) != news.rows("train", 50, 0)
  assert not {a for a, _ in news.rows("test", 20)} & {a for a, _ in articles}


def load(name, split):
  task = seqio.get_mixture_or_task(name)
  return list(task.get_dataset(None, split, shuffle=False).as_numpy_iterator())


@pytest.mark.parametrize(
  ("register", "prefix", "metric"),
  [
    (tasks.demo_ende, "translate English to German: ", "bleu"),
    (tasks.demo_cnndm, "summarize: ", "rouge"),
  ],
)
def test_tasks_load_and_tokenize(register, prefix, metric, trained):
  name = register(trained, **SIZES)
  assert name.startswith("demo_synthetic_")
  assert register(trained, **SIZES) == name
  task = seqio.get_mixture_or_task(name)
  assert [fn.__name__ for fn in task.metric_fns] == [metric]
  rows = load(name, "test")
  assert len(rows) == task.num_input_examples("test") == SIZES["test_size"]
  for row in rows:
    assert row["inputs_pretokenized"].decode().startswith(prefix)
    for side in ("inputs", "targets"):
      assert row[side][-1] == 1
      assert 2 not in row[side]
      text = row[f"{side}_pretokenized"].decode().replace("\n", " ")
      assert trained.decode(row[side][:-1].tolist()) == text


def test_language_model_tasks_have_the_english_sentences(trained):
  name = tasks.demo_lm(trained, **SIZES, prompt_words=3)
  assert name.startswith("demo_synthetic_lm_v")
  assert tasks.demo_lm(trained, **SIZES, prompt_words=3) == name
  assert tasks.demo_lm(trained, **SIZES) != name
  rows = load(name, "test")
  assert len(rows) == SIZES["test_size"]
  english = [source for source, _ in translation.rows("test", 4 * len(rows))]
  for row, *sentences in zip(rows, *(english[n::4] for n in range(4)), strict=True):
    prompt = row["inputs_pretokenized"].decode()
    text = prompt + row["targets_pretokenized"].decode()
    assert text == " ".join(sentences)
    assert len(prompt.split()) == 3
    assert [*row["inputs"], *row["targets"]] == [*trained.encode(text), 1]


def test_different_sizes_and_seeds_have_different_names():
  default = tasks.demo_ende(BYTES)
  assert len({default, tasks.demo_ende(BYTES, seed=1), tasks.demo_ende(BYTES, 10)}) == 3
  for bad in (0, 1.5, True):
    with pytest.raises(ValueError, match="at least 1"):
      tasks.demo_ende(BYTES, bad)


def test_the_iterator_can_be_saved(tmp_path):
  name = tasks.demo_ende(BYTES, **SIZES)
  dataset = seqio.get_mixture_or_task(name).get_dataset(None, "test", shuffle=False)
  iterator = iter(dataset)
  next(iterator)
  path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "it"))
  expected = next(iterator)["inputs_pretokenized"]
  fresh = iter(dataset)
  tf.train.Checkpoint(iterator=fresh).restore(path)
  assert next(fresh)["inputs_pretokenized"] == expected


def test_the_vocabulary_has_t5_s_special_ids_and_is_reused(trained):
  path = trained.sentencepiece_model_file
  assert trained.vocab_size == 1_500
  ids = [trained.tokenizer.pad_id(), trained.eos_id, trained.unk_id]
  assert (ids, trained.tokenizer.bos_id()) == ([0, 1, 2], -1)
  changed = os.stat(path).st_mtime_ns
  assert vocabulary.demo_vocabulary(path, 1_500, "cnndm,ende") == trained
  assert os.stat(path).st_mtime_ns == changed
  with pytest.raises(ValueError, match="was made with"):
    vocabulary.demo_vocabulary(path, 1_400, "ende,cnndm")


def test_the_vocabulary_covers_unseen_text(trained):
  for row in (*translation.rows("test", 100), *news.rows("test", 40)):
    for text in row:
      ids = trained.encode(text)
      assert 2 not in ids
      assert trained.decode(ids) == text.replace("\n", " ")


def test_the_vocabulary_is_deterministic(trained, tmp_path):
  again = str(tmp_path / "again.model")
  vocabulary.demo_vocabulary(again, 1_500, "ende,cnndm")
  first = pathlib.Path(trained.sentencepiece_model_file).read_bytes()
  assert pathlib.Path(again).read_bytes() == first


def test_a_vocabulary_of_unknown_origin_is_refused(tmp_path):
  path = tmp_path / "x.model"
  path.write_bytes(b"?")
  with pytest.raises(ValueError, match="the settings of the vocabulary are unknown"):
    vocabulary.demo_vocabulary(str(path))
  with pytest.raises(ValueError, match="must be ende, cnndm, lm"):
    vocabulary.demo_vocabulary(str(tmp_path / "y"), corpora="wmt")
  with pytest.raises(ValueError, match="whole number of at least 1"):
    vocabulary.demo_vocabulary(str(tmp_path / "y"), size=0)
  with pytest.raises(ValueError, match="SentencePiece can't train"):
    vocabulary.demo_vocabulary(str(tmp_path / "y"), size=30)
  assert os.listdir(tmp_path) == ["x.model"]
