"""Prompts and continuations, which together have the text and the text's tokens."""

import io

import numpy as np
import pytest
import sentencepiece
import seqio

from specdec_t5x.data import language_modeling, metrics
from specdec_t5x.vocabularies.sentencepieces import SentencePieceVocabulary
from tests import real_data
from tests.data.conftest import examples

pytestmark = pytest.mark.slow

BYTES = seqio.ByteVocabulary()
TEXT = "a bc  def\tg\n\n  \nlone\n x y z \n"


@pytest.fixture
def files(write):
  return {"test": write("lines.txt", TEXT)}


def texts(examples):
  keys = ("inputs_pretokenized", "targets_pretokenized")
  return [tuple(example[key].decode() for key in keys) for example in examples]


def register(files, prompt_words, vocabulary=BYTES, name="lm"):
  return language_modeling.language_modeling_from_files(
    name, files, vocabulary, prompt_words
  )


def test_the_first_words_are_the_prompt(files):
  rows = examples(register(files, 2))
  assert texts(rows) == [("a bc", "  def\tg"), ("x y", " z")]
  assert rows[0]["inputs"].tolist() == BYTES.encode("a bc")
  assert rows[0]["targets"].tolist() == [*BYTES.encode("  def\tg"), 1]
  task = seqio.get_mixture_or_task("lm")
  assert task.num_input_examples("test") == 2
  assert task.metric_fns == [metrics.log_likelihood]
  # A cut text has no EOS, and a cut prompt keeps the last tokens.
  rows = examples("lm", sequence_length={"inputs": 3, "targets": 2})
  assert rows[0]["inputs"].tolist() == BYTES.encode(" bc")
  assert rows[0]["targets"].tolist() == BYTES.encode("  ")
  assert rows[1]["targets"].tolist() == BYTES.encode(" z")
  rows = examples(register(files, 0, name="whole"))
  assert texts(rows) == [("", "a bc  def\tg"), ("", "lone"), ("", "x y z")]
  assert {example["inputs"].size for example in rows} == {0}


def test_skipped_texts_are_reported_once(files, caplog):
  caplog.set_level("WARNING", logger="absl")  # Other tests may have set the level.
  for _ in range(2):
    examples(register(files, 2))
  (record,) = caplog.records
  assert "3 of the 5 texts" in record.getMessage()
  with pytest.raises(
    ValueError, match="more than prompt_words=9 words, but the 5 texts"
  ):
    register(files, 9, name="too_short")


@pytest.mark.parametrize("across_words", [False, True])
def test_tokens_equal_the_text_s_unless_pieces_cross_words(write, across_words):
  lines = [f"the end of the {word} of the end" for word in ("day", "way", "bay")]
  model = io.BytesIO()
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(lines * 20),
    model_writer=model,
    model_type="bpe",
    vocab_size=24,
    hard_vocab_limit=False,
    split_by_whitespace=not across_words,
    minloglevel=2,
    **{"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
  )
  path = write("words.model", model.getvalue())
  vocabulary = seqio.SentencePieceVocabulary(path, extra_ids=0)
  files = {"test": write("lines.txt", "\n".join(lines))}
  natural = []
  for count in (0, 1, 3):
    rows = examples(register(files, count, vocabulary, f"lm{count}"))
    joined = [[*example["inputs"], *example["targets"]] for example in rows]
    # The tokens spell the text with any pieces.
    assert [vocabulary.decode(map(int, ids[:-1])) for ids in joined] == lines
    natural += [
      ids == [*vocabulary.encode(line), 1]
      for ids, line in zip(joined, lines, strict=True)
    ]
  assert all(natural) != across_words


def test_real_text_with_t5s_vocabulary(write):
  vocabulary = SentencePieceVocabulary(
    str(real_data.path("t5_spiece/spiece.model")), 100
  )
  with open(real_data.path("wikitext2/valid.txt"), encoding="utf-8") as file:
    lines = [line for line, _ in zip(file, range(400), strict=False)]
  name = register({"test": write("wiki.txt", "".join(lines))}, 5, vocabulary)
  rows = examples(name)
  long_lines = [line.strip() for line in lines if len(line.split()) > 5]
  assert ["".join(pair) for pair in texts(rows)] == long_lines
  for example, line in zip(rows, long_lines, strict=True):
    joined = np.concatenate([example["inputs"], example["targets"]])
    assert joined.tolist() == [*vocabulary.encode(line), 1]


@pytest.mark.parametrize(
  ("file", "words", "message"),
  [
    ("lines.txt", -1, r"prompt_words must be .*from 0 \(no prompt\) to 200"),
    ("lines.txt", 201, "prompt_words must be"),
    (("a", "b"), 5, r"\('a', 'b'\) can't be read"),
  ],
)
def test_bad_arguments_are_refused(file, words, message):
  with pytest.raises(ValueError, match=message):
    register({"test": file}, words)


def test_long_prompts(write):
  words = [f"w{n}" for n in range(203)]
  files = {"test": write("long.txt", " ".join(words))}
  name = register(files, language_modeling.MAX_PROMPT_WORDS)
  ((prompt, continuation),) = texts(examples(name))
  assert (prompt.split(), continuation.split()) == (words[:200], words[200:])
