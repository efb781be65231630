"""Vocabularies give the tokens and texts of the reference libraries."""

import json

import numpy as np
import pytest

from specdec_t5x.data import vocabularies
from specdec_t5x.vocabularies.frames import framed
from specdec_t5x.vocabularies.opening import open_vocabulary
from tests.vocabularies import made

TEXTS = made.odd_texts()


def open_both(folder):
  """Returns Python's vocabulary after a comparison with gin's vocabulary."""
  python = open_vocabulary(folder)
  gin = vocabularies.sentencepiece_vocabulary(str(folder), None)
  assert python == gin
  assert hash(python) == hash(gin)
  for text in TEXTS[:60]:
    tokens = python.encode(text)
    assert gin.encode_tf(text).numpy().tolist() == tokens
    row = np.array([tokens, tokens], np.int32)
    texts = [text.decode() for text in gin.decode_tf(row).numpy().tolist()]
    assert texts == [python.decode(tokens)] * 2
  return python


def open_all(folder, vocab_size):
  """Returns the vocabulary of a folder, and the file's for Python and for gin."""
  file = str(folder / "spiece.model")
  return (
    open_both(folder),
    open_vocabulary(file, vocab_size=vocab_size),
    vocabularies.sentencepiece_vocabulary(file, 100),
  )


SENTENCEPIECE = {"T5": made.t5, "mT5": made.mt5, "Gemma": made.gemma}


@pytest.mark.parametrize("kind", SENTENCEPIECE)
def test_tokens_equal_sentencepiece_s(kind, tmp_path):
  expected = SENTENCEPIECE[kind](tmp_path / "folder")
  vocabulary = open_both(tmp_path / "folder")
  for text in TEXTS:
    tokens = expected.encode(text)
    assert vocabulary.encode(text) == tokens
    assert vocabulary.decode(tokens) == expected.decode(tokens)


TOKENIZERS = {
  "unigram": made.unigram,
  "prefix never": lambda folder: made.unigram(folder, "never"),
  "prefix first": lambda folder: made.unigram(folder, "first"),
  "no normalizer": lambda folder: made.unigram(folder, spaces=False),
  "spaces replaced": lambda folder: made.unigram(
    folder, replace=(made.tokenizers.Regex(" {2,}"), " ")
  ),
  "bytes' BPE": made.byte_level,
  "WordPiece": made.word_piece,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_json_gives_the_tokens_of_tokenizers(kind, tmp_path):
  expected = TOKENIZERS[kind](tmp_path / "folder")
  vocabulary = open_both(tmp_path / "folder")
  for text in TEXTS:
    tokens = expected.encode(text, add_special_tokens=False).ids
    assert vocabulary.encode(text) == tokens
    assert framed(vocabulary, tokens) == expected.encode(text).ids
    shown = [token for token in tokens if token not in vocabulary.hidden]
    if shown == tokens:
      assert vocabulary.decode(tokens) == expected.decode(
        tokens, skip_special_tokens=False
      )
  assert vocabulary.vocab_size == expected.get_vocab_size()


def test_bytes_equal_byt5_s(tmp_path):
  made.write_json_settings(tmp_path, tokenizer_class="ByT5Tokenizer", extra_ids=125)
  vocabulary = open_both(tmp_path)
  for text in TEXTS:
    tokens = [3 + byte for byte in text.encode()]
    assert vocabulary.encode(text) == tokens
    assert vocabulary.decode([*tokens, 1, 0]) == text
  assert vocabulary.encode("a <extra_id_0>b<extra_id_124>") == [100, 35, 259, 101, 383]
  assert vocabulary.vocab_size == 384
  made.write_json(tmp_path / "config.json", {"vocab_size": 264})
  assert open_vocabulary(tmp_path).vocab_size == 264


def test_sentinels_are_tokens_of_both_entry_points(tmp_path):
  """An example from T5's documentation: 32099 is <extra_id_0>."""
  made.t5(tmp_path / "folder")
  text = "The <extra_id_0> walks in <extra_id_1> park"
  tokens = [*(37, 32099, 10681, 16, 32098, 2447)]
  for vocabulary in open_all(tmp_path / "folder", 32128):
    assert vocabulary.encode(text) == tokens
    # transformers writes no space before an added token.
    assert vocabulary.decode([*tokens, 1]).replace(" <", "<") == text.replace(" <", "<")
    assert vocabulary.vocab_size == 32100


def test_mt5_s_sentinels_are_unchanged(tmp_path):
  expected = made.mt5(tmp_path / "folder")
  for vocabulary in open_all(tmp_path / "folder", 128):
    assert vocabulary.vocab_size == expected.vocab_size()
    for text in ("a <extra_id_0> cat", "<extra_id_5>", "x<extra_id_1>"):
      assert vocabulary.encode(text) == expected.encode(text)


@pytest.mark.parametrize("first", [0, 7, 96])
def test_sentinels_without_the_mark_of_a_space_are_pieces(first, tmp_path):
  names = [f"<extra_id_{first + number}>" for number in range(4)]
  expected = made.trained(tmp_path / "folder", user_defined_symbols=names)
  made.write_json(tmp_path / "folder" / "config.json", {"vocab_size": 80})
  folder, *files = open_all(tmp_path / "folder", 200)
  for vocabulary in (folder, *files):
    assert vocabulary.vocab_size == expected.vocab_size()
    ids = [expected.piece_to_id(name) for name in names]
    assert [vocabulary.encode(name)[-1] for name in names] == ids
    assert vocabulary.decode([*ids, 1]).split(">")[0] == names[0][:-1]
  # transformers encodes the texts beside an added token as separate texts.
  cat, dog = expected.encode("a cat"), expected.encode("a dog")
  assert folder.encode(f"a cat {names[2]} a dog") == [*cat, ids[2], *dog]


OPENERS = {
  "the file": lambda folder: open_vocabulary(folder / "spiece.model"),
  "the folder": open_vocabulary,
  "with sentinels": lambda folder: open_vocabulary(folder, 100),
  "for T5X": lambda folder: vocabularies.sentencepiece_vocabulary(str(folder), None),
}


@pytest.mark.parametrize("how", OPENERS)
def test_a_vocabulary_that_is_trained_again_is_read_again(how, tmp_path):
  made.trained(tmp_path)
  old = OPENERS[how](tmp_path)
  text = "the young woman sees a dog"
  before = old.encode(text)
  assert old.encode_tf(text).numpy().tolist() == before
  made.trained(tmp_path, model_type="char")
  new = OPENERS[how](tmp_path)
  assert new.encode(text) != before == old.encode(text)
  assert new.encode_tf(text).numpy().tolist() == new.encode(text)
  assert new != old
  if how != "the file":
    assert OPENERS[how](tmp_path) == new != open_vocabulary(tmp_path, extra_ids=5)


# Flags of the token {, and the parts of a text that SentencePiece tokenizes.
STRIPPED = {
  "as it is": ({}, ["a ", "{", " e"]),
  "left": ({"lstrip": True}, ["a", "{", " e"]),
  "right": ({"rstrip": True}, ["a ", "{", "e"]),
  "a word": ({"single_word": True}, ["a ", "{", " e"]),
}


@pytest.mark.parametrize("how", STRIPPED)
@pytest.mark.parametrize("normalized", [False, True])
def test_added_tokens_are_encoded_and_decoded(how, normalized, tmp_path):
  flags, parts = STRIPPED[how]
  flags = flags | {"normalized": normalized, "special": False}
  expected = made.trained(tmp_path)
  added = {60: "{", 61: "}", 63: "\n" if not normalized else "@@"}
  listed = {str(token): {"content": text, **flags} for token, text in added.items()}
  made.write_json_settings(tmp_path, extra_ids=0, added_tokens_decoder=listed)
  vocabulary = open_both(tmp_path)
  ids = {text: token for token, text in added.items()}
  tokens = [
    token
    for part in parts
    for token in ([ids[part]] if part in ids else expected.encode(part))
  ]
  assert vocabulary.encode("a { e") == tokens
  assert vocabulary.decode(tokens).replace(" ", "") == "a{e"
  last = added[63]
  assert vocabulary.encode(f"{last} e") == [63, *expected.encode("e")]
  assert vocabulary.decode([63, 60, 61]) == f"{last}{{}}"
  assert vocabulary.vocab_size == 64
  # Compatibility characters become the token if texts are normalized.
  assert (60 in vocabulary.encode("a \uff5b e")) == normalized


def test_added_tokens_of_the_older_file_and_of_tokenizer_json(tmp_path):
  expected = made.trained(tmp_path / "old")
  made.write_json(tmp_path / "old" / "added_tokens.json", {"{": 161, "}": 160})
  made.write_json(tmp_path / "old" / "config.json", {"vocab_size": 162})
  vocabulary = open_both(tmp_path / "old")
  assert vocabulary.encode("{a}") == [161, *expected.encode("a"), 160]
  last = expected.vocab_size() + 99
  assert vocabulary.encode("<extra_id_0>") == [last]
  tokenizer = made.unigram(tmp_path / "new")
  tokenizer.add_tokens(["{", made.tokenizers.AddedToken("\n", normalized=False)])
  tokenizer.save(str(tmp_path / "new" / made.TOKENIZER))
  vocabulary = open_both(tmp_path / "new")
  for text in ("{\n a", "a{b", "\n", "x <extra_id_1> {"):
    assert (
      vocabulary.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
    )
    assert vocabulary.decode(vocabulary.encode(text)) == tokenizer.decode(
      vocabulary.encode(text), skip_special_tokens=False
    )


# Settings and files that name the end of sequence, token 2; the end tokens; and whether
# inputs end with EOS. As in transformers 5.24, only T5's classes add EOS.
ENDS = {
  "a text": ({"eos_token": "</s>"}, {}, (2,), True),
  "an object": ({"eos_token": {"content": "</s>", "lstrip": False}}, {}, (2,), True),
  "a map": ({}, {"special_tokens_map.json": {"eos_token": "</s>"}}, (2,), True),
  "several": ({}, {"generation_config.json": {"eos_token_id": [2, 5]}}, (2, 5), True),
  "nowhere": ({}, {}, (2,), True),  # </s> is the default.
  "T5's class": ({"tokenizer_class": "T5TokenizerFast"}, {}, (2,), True),
  "mT5's class": ({"tokenizer_class": "MT5TokenizerFast"}, {}, (2,), True),
  "any class": ({"tokenizer_class": "PreTrainedTokenizerFast"}, {}, (2,), False),
  "GPT-2's class": ({"tokenizer_class": "GPT2Tokenizer"}, {}, (2,), False),
}


@pytest.mark.parametrize("how", ENDS)
def test_without_a_post_processor_settings_decide_the_end_of_inputs(how, tmp_path):
  settings, files, ends, has_end = ENDS[how]
  tokenizer = made.byte_level(tmp_path)
  contents = json.loads(tokenizer.to_str()) | {"post_processor": None}
  made.write_json(tmp_path / made.TOKENIZER, contents)
  made.write_json_settings(tmp_path, **settings)
  for name, contents in files.items():
    made.write_json(tmp_path / name, contents)
  vocabulary = open_both(tmp_path)
  assert (vocabulary.prefix, vocabulary.suffix) == ((), (2,) if has_end else ())
  assert (vocabulary.eos_id, vocabulary.end_ids) == (2, ends)
  words = vocabulary.encode("the old man")
  for end in ends:  # A text ends before any end token.
    assert vocabulary.decode([*words, end, *words, 0]) == vocabulary.decode(words)


@pytest.mark.parametrize("ends", [3, [17, 3, 9]])
def test_an_end_that_only_the_generation_config_names(ends, tmp_path):
  """The tokenizer.json, and a model of pieces, have no end of sequence."""
  made.word_piece(tmp_path / "words")
  made.write_json_settings(tmp_path / "words", cls_token="[CLS]")
  made.trained(tmp_path / "pieces", eos_id=-1)
  for folder in ("words", "pieces"):
    path = tmp_path / folder / "generation_config.json"
    made.write_json(path, {"eos_token_id": ends})
    vocabulary = open_both(tmp_path / folder)
    assert vocabulary.end_ids == tuple(ends if isinstance(ends, list) else [ends])
    assert vocabulary.eos_id == vocabulary.end_ids[0]
    expected = ((2,), (3,)) if folder == "words" else ((), (vocabulary.eos_id,))
    assert (vocabulary.prefix, vocabulary.suffix) == expected


@pytest.mark.parametrize("single", ["<s> $A </s>", "$A </s>", "<s> <s> $A", "$A"])
@pytest.mark.parametrize("words", [["b", "c"], ["0"], ["zz", "y"]])
def test_frames_are_found_for_any_words(single, words, tmp_path):
  ids = {token: number for number, token in enumerate(["<s>", "</s>", *words])}
  tokenizer = made.tokenizers.Tokenizer(made.models.BPE(ids, []))
  tokenizer.add_special_tokens(["<s>", "</s>"])
  made.template(tokenizer, single)
  made.saved(tmp_path, tokenizer)
  vocabulary = open_vocabulary(tmp_path)
  around = [[ids[name] for name in part.split()] for part in single.split("$A")]
  assert [list(vocabulary.prefix), list(vocabulary.suffix)] == around


@pytest.mark.parametrize("gap", [1, 7, 300])
@pytest.mark.parametrize("kind", ["WordPiece", "BPE"])
def test_ids_of_a_file_may_have_gaps(kind, gap, tmp_path):
  tokenizer = (made.word_piece if kind == "WordPiece" else made.byte_level)(tmp_path)
  size = tokenizer.get_vocab_size()
  contents = json.loads(tokenizer.to_str())
  last = {"content": "@@", "id": size + gap, "special": False}
  flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
  contents["added_tokens"].append(last | flags)
  ids = contents["model"]["vocab"]
  moved = max(ids, key=ids.get)
  ids[moved] = size + gap - 1
  made.write_json(tmp_path / made.TOKENIZER, contents)
  vocabulary = open_vocabulary(tmp_path)
  assert vocabulary.vocab_size == size + gap
  missing = [x for x in range(vocabulary.vocab_size) if not vocabulary.piece(x)]
  assert missing
  assert vocabulary.decode(missing) == ""


@pytest.mark.parametrize("token", [5, 40, 46, 145])
@pytest.mark.parametrize("name", ["added_tokens.json", made.SETTINGS])
def test_an_added_token_may_replace_a_piece_or_a_sentinel(token, name, tmp_path):
  expected = made.trained(tmp_path)
  assert expected.vocab_size() == 46  # Sentinels follow, 46 to 145.
  listed = {"{": token} if name != made.SETTINGS else {}
  made.write_json(tmp_path / "added_tokens.json", listed)  # An empty file is valid.
  if name == made.SETTINGS:
    described = {str(token): {"content": "{"}, "1": {"content": "</s>"}}
    made.write_json_settings(tmp_path, added_tokens_decoder=described)
  vocabulary = open_both(tmp_path)
  around = expected.encode("a"), expected.encode("b")
  assert vocabulary.encode("a{b") == [*around[0], token, *around[1]]
  assert vocabulary.decode([token]) == vocabulary.piece(token) == "{"
  assert vocabulary.encode("</s>") == expected.encode("</s>")
  assert vocabulary.vocab_size == 146


def test_tokenizer_json_takes_precedence_over_pieces(tmp_path):
  made.trained(tmp_path)
  expected = made.unigram(tmp_path)
  vocabulary = open_both(tmp_path)
  tokens = expected.encode("the old man", add_special_tokens=False).ids
  assert vocabulary.encode("the old man") == tokens
  assert open_vocabulary(tmp_path / made.TOKENIZER) == vocabulary


GEMMA = {"tokenizer_class": "GemmaTokenizer"}


@pytest.mark.parametrize(
  ("settings", "around"),
  [
    (GEMMA, ([2], [])),
    (GEMMA | {"add_bos_token": None}, ([2], [])),
    (GEMMA | {"add_eos_token": True}, ([2], [1])),
    (GEMMA | {"add_bos_token": False, "add_eos_token": False}, ([], [1])),
    ({"add_bos_token": False}, ([], [1])),
  ],
)
def test_gemma_s_frame_follows_the_settings(settings, around, tmp_path):
  made.gemma(tmp_path)
  made.write_json_settings(tmp_path, **settings)
  vocabulary = open_vocabulary(tmp_path)
  assert ([*vocabulary.prefix], [*vocabulary.suffix]) == around
  assert framed(vocabulary, [9, 8]) == [*around[0], 9, 8, *around[1]]
  if around[0]:
    made.trained(tmp_path, "tokenizer.model")
    with pytest.raises(ValueError, match=r"add_bos_token is true, but .*no beginning"):
      open_vocabulary(tmp_path)


@pytest.mark.parametrize("name", ["other.json", "no/tokenizer.json", "vocab.json"])
def test_other_json_files_are_refused(name, tmp_path):
  made.unigram(tmp_path)
  (tmp_path / "other.json").write_text("{}")
  for read_vocabulary in (
    open_vocabulary,
    lambda path: vocabularies.sentencepiece_vocabulary(str(path), None),
  ):
    with pytest.raises(ValueError, match="can't be read: expected a file tokenizer"):
      read_vocabulary(tmp_path / name)
