"""TFDS folders made offline load with the ordinary TFDS tasks."""

import os
import pathlib
import runpy

import pytest
import seqio
import tensorflow_datasets as tfds

from specdec_t5x.data import offline_tfds, tasks, text_files, vocabularies
from tests import real_data
from tests.data.conftest import examples

WMT = "wmt14_translate/de-en"
SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "prepare_tfds.py"


@pytest.fixture
def run_script():
  """Returns the script's main function."""
  return runpy.run_path(str(SCRIPT))["main"]


@pytest.fixture
def pair(write):
  """Returns a function that writes n parallel lines and returns the paths."""

  def make(n, word="a"):
    english = write(f"{word}.en", "".join(f"{word} {i}\n" for i in range(n)))
    german = write(f"{word}.de", "".join(f"{word.upper()} {i}\n" for i in range(n)))
    return offline_tfds.ParallelFiles(english, german)

  return make


def load(directory, name=WMT):
  """Returns the examples by split, read with TFDS alone."""
  builder = tfds.builder(name, data_dir=directory)
  return {
    split: list(tfds.as_numpy(builder.as_dataset(split=split)))
    for split in builder.info.splits
  }


def row(word, i):
  return {"en": f"{word} {i}".encode(), "de": f"{word.upper()} {i}".encode()}


def test_examples_are_complete_and_in_order(tfds_dir, pair):
  assert offline_tfds.prepare(WMT, tfds_dir, {"test": pair(30)}) == {"test": 30}
  assert load(tfds_dir) == {"test": [row("a", i) for i in range(30)]}
  assert os.listdir(tfds_dir) == ["wmt14_translate"]


def test_several_shards_and_chunks_lose_nothing(tfds_dir, pair, monkeypatch):
  monkeypatch.setattr(offline_tfds, "_SHARD_EXAMPLES", 7)
  monkeypatch.setattr(offline_tfds, "_CHUNK", 4)
  offline_tfds.prepare(WMT, tfds_dir, {"test": pair(30)})
  builder = tfds.builder(WMT, data_dir=tfds_dir)
  assert builder.info.splits["test"].shard_lengths == [7, 7, 7, 7, 2]
  loaded = [r["en"] for r in load(tfds_dir)["test"]]
  assert sorted(loaded) == sorted(row("a", i)["en"] for i in range(30))


def test_splits_are_added_kept_and_replaced(tfds_dir, pair):
  offline_tfds.prepare(WMT, tfds_dir, {"test": pair(3), "train": pair(2, "t")})
  offline_tfds.prepare(WMT, tfds_dir, {"validation": pair(4, "v")})
  with pytest.raises(ValueError, match=r"already has the split test.*--overwrite"):
    offline_tfds.prepare(WMT, tfds_dir, {"test": pair(1, "n")})
  assert load(tfds_dir)["test"] == [row("a", i) for i in range(3)]
  offline_tfds.prepare(WMT, tfds_dir, {"test": pair(1, "n")}, overwrite=True)
  assert load(tfds_dir) == {
    "test": [row("n", 0)],
    "train": [row("t", i) for i in range(2)],
    "validation": [row("v", i) for i in range(4)],
  }


def test_a_split_written_by_tfds_is_kept(tfds_dir, pair):
  # TFDS names the shards differently (-00000-of-00001).
  class Wmt14Translate(tfds.translate.wmt14.Wmt14Translate, skip_registration=True):
    def _split_generators(self, dl_manager):
      return {"train": ((i, {"en": "x", "de": "y"}) for i in range(5))}

  builder = Wmt14Translate(config="de-en", data_dir=tfds_dir)
  builder.download_and_prepare()
  assert any("-of-" in name for name in os.listdir(builder.data_dir))
  offline_tfds.prepare(WMT, tfds_dir, {"test": pair(2)})
  loaded = load(tfds_dir)
  assert loaded["train"] == [{"en": b"x", "de": b"y"}] * 5
  assert loaded["test"] == [row("a", i) for i in range(2)]


def test_interrupted_writing_leaves_the_old_splits(tfds_dir, pair, monkeypatch):
  offline_tfds.prepare(WMT, tfds_dir, {"train": pair(2, "t")})

  def interrupt(*_):
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(tfds.core.SequentialWriter, "close_all", interrupt)
    with pytest.raises(KeyboardInterrupt):
      offline_tfds.prepare(WMT, tfds_dir, {"test": pair(3)})
  assert list(load(tfds_dir)) == ["train"]
  assert os.listdir(tfds_dir) == ["wmt14_translate"]


def test_a_kill_between_the_renames_loses_no_split(tfds_dir, pair):
  offline_tfds.prepare(WMT, tfds_dir, {"train": pair(2, "t")})
  final = tfds.builder(WMT, data_dir=tfds_dir).data_dir
  os.rename(final, offline_tfds._previous(final))
  assert load(tfds_dir) == {}
  offline_tfds.prepare(WMT, tfds_dir, {"test": pair(3)})
  assert sorted(load(tfds_dir)) == ["test", "train"]


@pytest.mark.parametrize(
  ("dataset", "message"),
  [
    ("squad", "Can't prepare 'squad'"),
    ("wmt14_translate", "lacks a language pair"),
    ("wmt14_translate/de-xx", "has no 'wmt14_translate/de-xx'"),
    ("xsum", "'document' and 'summary' .* got parallel files"),
    ("lm1b", "field.* 'text' .* got parallel files"),
  ],
)
def test_unsuitable_datasets_are_refused(tfds_dir, pair, dataset, message):
  with pytest.raises(ValueError, match=message):
    offline_tfds.prepare(dataset, tfds_dir, {"test": pair(1)})
  assert not os.path.exists(tfds_dir)


def test_xsum_through_the_ordinary_task(tfds_dir, write):
  path = write("x.csv", "document,summary\nlong text,short\n")
  assert offline_tfds.prepare("xsum", tfds_dir, {"test": path}) == {"test": 1}
  name = tasks.xsum(seqio.ByteVocabulary())
  (row,) = examples(name)
  assert row["inputs_pretokenized"] == b"summarize: long text"
  assert row["targets_pretokenized"] == b"short"
  assert [f.__name__ for f in seqio.get_mixture_or_task(name).metric_fns] == ["rouge"]


def test_only_lm1b_takes_lines_of_text(tfds_dir, write, run_script, capsys):
  text = write("news.txt", " One two .\nThree .\n")
  flags = ["--tfds_data_dir", tfds_dir, "--text", f"test={text}"]
  assert run_script(["--dataset", "lm1b", *flags]) == 0
  assert load(tfds_dir, "lm1b") == {
    "test": [{"text": b"One two ."}, {"text": b"Three ."}]
  }
  assert run_script(["--dataset", "xsum", *flags]) == 1
  assert "Only lm1b is made from lines of text" in capsys.readouterr().err


def test_script_writes_several_splits_and_records(tfds_dir, pair, write, run_script):
  one, two = pair(2), pair(3, "b")
  records = write("r.jsonl", '{"en": "yes", "de": "ja"}\n')
  flags = ["--dataset", WMT, "--tfds_data_dir", tfds_dir]
  flags += ["--split", "test", "--source", one.source, "--target", one.target]
  flags += ["--split", "train", "--source", two.source, "--target", two.target]
  assert run_script([*flags, "--records", f"validation={records}"]) == 0
  sizes = {split: len(rows) for split, rows in load(tfds_dir).items()}
  assert sizes == {"test": 2, "train": 3, "validation": 1}


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--records", "x.csv"], "expected SPLIT=FILE"),
    (["--records", "a=x.csv", "--records", "a=y.csv"], "must be given once"),
    ([], "No split was given"),
  ],
)
def test_script_reports_bad_flags(tfds_dir, run_script, capsys, flags, message):
  base = ["--dataset", "cnn_dailymail", "--tfds_data_dir", tfds_dir]
  assert run_script([*base, *flags]) == 1
  assert message in capsys.readouterr().err


def test_real_wmt14_through_the_ordinary_task(tfds_dir, write, run_script):
  lines = text_files.read_lines(
    str(real_data.path("wmt14_500_multiref/wmt14-en-de.extra_refs.txt"))
  )
  by_kind = {
    kind: [t for k, t in (x.split("\t", 1) for x in lines) if k.startswith(kind)]
    for kind in ("S-", "T-")
  }
  english = write("x.en", "\n".join(by_kind["S-"]) + "\n")
  german = write("x.de", "\n".join(by_kind["T-"]) + "\n")
  flags = ["--dataset", WMT, "--tfds_data_dir", tfds_dir, "--split", "test"]
  assert run_script([*flags, "--source", english, "--target", german]) == 0

  vocabulary = vocabularies.t5_vocabulary(str(real_data.path("t5_spiece/spiece.model")))
  name = tasks.wmt14_ende(vocabulary)
  rows = examples(name)
  size = seqio.get_mixture_or_task(name).num_input_examples("test")
  assert size == len(rows) == 500
  prefix = "translate English to German: "
  for example, source, target in zip(rows, *by_kind.values(), strict=True):
    assert example["inputs_pretokenized"].decode() == prefix + source
    assert example["inputs"].tolist() == [*vocabulary.encode(prefix + source), 1]
    assert example["targets"].tolist() == [*vocabulary.encode(target), 1]


def test_real_cnn_dailymail_through_the_ordinary_task(tfds_dir):
  path = str(real_data.path("cnndm_manuj/cnn_dailymail_validation.csv"))
  offline_tfds.prepare("cnn_dailymail", tfds_dir, {"validation": path})
  vocabulary = vocabularies.t5_vocabulary(str(real_data.path("t5_spiece/spiece.model")))
  lengths = {"inputs": 512, "targets": 128}
  rows = examples(tasks.cnn_dailymail(vocabulary), "validation", lengths)
  expected = text_files.read_fields(path, ("article", "highlights", "id"))
  assert len(rows) == len(expected) == 500
  for example, record in zip(rows, expected, strict=True):
    summary = example["targets_pretokenized"].decode()
    assert summary == record["highlights"]
    inputs = example["inputs_pretokenized"].decode()
    assert inputs == "summarize: " + record["article"]
    assert example["inputs"][-1] == 1
    assert len(example["inputs"]) <= 512
  raw = load(tfds_dir, "cnn_dailymail")["validation"][0]
  assert raw["id"].decode() == expected[0]["id"]
  assert raw["publisher"] == b""
