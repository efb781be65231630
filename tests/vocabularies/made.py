"""Small folders with vocabularies of every kind, and odd texts."""

import json
import pathlib
import shutil

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders as decoding
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from tests import real_data
from tests.t5x_bridge import tiny

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
SENTENCES = [*tiny.sentences(300), "Zürich, ½ of ﬁve", "naïve café: 3 €!"]
# Texts that vocabularies treat differently, also parts of longer texts.
ODD = json.loads(pathlib.Path(__file__).with_name("odd.json").read_text())


def odd_texts(count: int = 200) -> list[str]:
  """Returns texts that vocabularies treat differently: `ODD`, then random mixtures."""
  draw = np.random.default_rng(0)
  words = [*ODD, *tiny.WORDS]
  mixed = [
    "".join(draw.choice(words) + draw.choice(["", " ", "  "]) for _ in range(4))
    for _ in range(count - len(ODD))
  ]
  return [*ODD, *mixed]


def write_json(path: pathlib.Path, contents) -> None:
  path.write_text(json.dumps(contents), encoding="utf-8")


def trained(folder: pathlib.Path, name: str = "spiece.model", **settings):
  """Writes a SentencePiece model and returns the processor."""
  folder.mkdir(parents=True, exist_ok=True)
  defaults = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "vocab_size": 60}
  defaults["hard_vocab_limit"] = False
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(SENTENCES),
    model_prefix=str(folder / "made"),
    minloglevel=2,
    **defaults | settings,
  )
  (folder / "made.model").rename(folder / name)
  (folder / "made.vocab").unlink()
  return sentencepiece.SentencePieceProcessor(model_file=str(folder / name))


def t5(folder):
  """Writes T5's vocabulary."""
  folder.mkdir()
  shutil.copyfile(real_data.path("t5_spiece", "spiece.model"), folder / "spiece.model")
  return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))


def mt5(folder):
  """Writes a model with sentinels among the pieces, like mT5's."""
  names = [f"▁<extra_id_{number}>" for number in range(5, -1, -1)]
  return trained(folder, user_defined_symbols=names, vocab_size=80)


def gemma(folder):
  """Writes a BPE model that changes no space, like Gemma's."""
  ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "vocab_size": 320}
  ids["hard_vocab_limit"] = True
  special_tokens = {"eos_piece": "<eos>", "bos_piece": "<bos>", "byte_fallback": True}
  unchanged = {"add_dummy_prefix": False, "remove_extra_whitespaces": False}
  made = trained(
    folder,
    "tokenizer.model",
    model_type="bpe",
    normalization_rule_name="identity",
    **ids,
    **special_tokens,
    **unchanged,
  )
  write_json(folder / SETTINGS, {"tokenizer_class": "GemmaTokenizer"})
  return made


def saved(folder, made: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
  folder.mkdir(parents=True, exist_ok=True)
  made.save(str(folder / TOKENIZER))
  return made


def learn(made, trainer, size, special, **settings) -> None:
  """Trains a tokenizer of `size` tokens with a class of trainers."""
  settings |= {"vocab_size": size, "special_tokens": special}
  made.train_from_iterator(SENTENCES, trainer(**settings, show_progress=False))


def words(*names: str) -> tokenizers.Tokenizer:
  """Returns a tokenizer of whole words, without an end of sequence."""
  ids = {name: token for token, name in enumerate(["<unk>", *names])}
  made = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
  made.pre_tokenizer = pre_tokenizers.Whitespace()
  return made


def template(made, single: str) -> None:
  """Sets the tokens around a text, such as `$A </s>`."""
  special_tokens = [
    (word, made.token_to_id(word)) for word in single.split() if word != "$A"
  ]
  made.post_processor = processors.TemplateProcessing(
    single=single, special_tokens=special_tokens
  )


def unigram(
  folder, prepend_scheme="always", replace=None, single="$A </s>", spaces=True
):
  """Writes a tokenizer.json like T5's, with optional changes."""
  special = ["<pad>", "</s>", "<unk>"]
  made = tokenizers.Tokenizer(models.Unigram())
  steps = [] if replace is None else [normalizers.Replace(*replace)]
  if spaces:
    steps = [normalizers.NFKC(), *steps]
  if steps:
    made.normalizer = normalizers.Sequence(steps)
  made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
  made.decoder = decoding.Metaspace(prepend_scheme=prepend_scheme)
  learn(made, trainers.UnigramTrainer, 70, special, unk_token="<unk>")
  made.add_special_tokens([f"<extra_id_{number}>" for number in (2, 1, 0)])
  template(made, single)
  return saved(folder, made)


def byte_level(folder):
  """Writes a BPE tokenizer of bytes, like CodeT5's."""
  special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
  made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = decoding.ByteLevel()
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  learn(made, trainers.BpeTrainer, 330, special, initial_alphabet=alphabet)
  template(made, "<s> $A </s>")
  write_json_settings(folder, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
  return saved(folder, made)


def word_piece(folder):
  """Writes a WordPiece tokenizer, like the tokenizer of a T5 with BERT's vocabulary."""
  special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
  made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
  made.normalizer = normalizers.BertNormalizer(lowercase=True)
  made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  made.decoder = decoding.WordPiece()
  learn(made, trainers.WordPieceTrainer, 120, special)
  template(made, "[CLS] $A [SEP]")
  special_tokens = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
  write_json_settings(folder, **special_tokens, eos_token={"content": "[SEP]"})
  return saved(folder, made)


def write_json_settings(folder, **settings):
  folder.mkdir(parents=True, exist_ok=True)
  write_json(folder / SETTINGS, settings)
