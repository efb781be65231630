"""Hugging Face's folders as this library reads and writes them, without torch."""

import json
import shutil
import warnings

import chex
import jax
import numpy as np
import pytest
import safetensors.numpy
import sentencepiece
import seqio

import specdec_t5x
from specdec_t5x import convert
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.data import vocabularies
from specdec_t5x.hugging_face import export, folder, names, vocabulary
from tests import commands, real_data
from tests.damage import files_of_at_most
from tests.errors import folders
from tests.t5x_bridge import tiny

TEXTS = [
  "the old man sees a red house",
  "a  cat\tsees the   dog",
  "Zürich, ½ of ﬁve",
  "",
]


def to_t5x(source, made, *flags):
  return convert.main([f"--from={source}", f"--to={made}", *flags])


def to_theirs(made, back, *flags):
  """The other way, of what `to_t5x` made."""
  return to_t5x(f"{made}/checkpoint_0", back, "--to-hugging-face", *flags)


@pytest.fixture
def theirs(tmp_path):
  return folders.write(tmp_path / "theirs")


def arrays_of(path):
  return safetensors.numpy.load_file(path / folders.WEIGHTS)


@pytest.mark.parametrize("how", ["t5x", "orbax"])
def test_a_folder_becomes_a_checkpoint_and_a_folder_again(how, theirs, tmp_path):
  made, back = tmp_path / "ours", tmp_path / "back"
  assert to_t5x(theirs, made, f"--format={how}") == 0
  paths = str(theirs), f"{made}/checkpoint_0"
  read, kept = map(specdec_t5x.load_model, paths)
  assert read.network.config == kept.network.config == tiny.TARGET
  chex.assert_trees_all_equal(read.params, kept.params)
  assert to_theirs(made, back) == 0
  chex.assert_trees_all_equal(arrays_of(theirs), arrays_of(back))


def test_what_is_rounded_is_read_in_the_file_s_16_bits(tmp_path):
  """Float32 takes twice the memory, and gives the same codes."""
  narrow = jax.tree.map(lambda x: x.astype("bfloat16"), tiny.drawn(tiny.TARGET))
  wide = jax.tree.map(lambda x: x.astype("float32"), narrow)
  made = []
  for name, params in {"narrow": narrow, "wide": wide}.items():
    export.write(str(tmp_path / name), tiny.TARGET, params)
    made.append(specdec_t5x.load_model(str(tmp_path / name), weights="int8").params)
  chex.assert_trees_all_equal(*made)
  found = [params["token_embedder"]["embedding"].dtype for params in made]
  assert found == ["bfloat16", "float32"]


def test_an_output_folder_is_never_overwritten(theirs, tmp_path, capsys):
  made = tmp_path / "ours"
  assert [to_t5x(theirs, made) for _ in range(2)] == [0, 1]
  assert "holds a checkpoint_0 already" in capsys.readouterr().err
  assert to_theirs(made, theirs) == 1
  assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*names.ALIASES, "lm_head.weight"])
def test_the_embedding_may_have_another_name(name, theirs):
  found = arrays_of(theirs)
  embedding = found.pop("shared.weight")
  expected = found.setdefault(name, embedding)
  unused = np.zeros((32, 2), np.float32)
  folders.replace_arrays(theirs, found | {names.UNUSED: unused})
  found = folder.Folder.open(str(theirs)).read(names.EMBEDDING)
  np.testing.assert_array_equal(found, expected)


def test_logits_go_by_what_is_in_the_file(theirs):
  arrays = arrays_of(theirs)
  head, shared = arrays.pop("lm_head.weight"), arrays["shared.weight"]
  root = np.float32(tiny.TARGET.emb_dim**-0.5)
  # Tied in config.json, head in the file -> tied here, and the projection.
  cases = [
    (False, head, False, head.T),
    (False, shared, False, shared.T),
    (False, None, False, shared.T),
    (True, head, False, head.T * root),
    (True, shared, True, None),
    (True, None, True, None),
  ]
  for tied, in_file, embeds, expected in cases:
    folders.set_config(theirs, tie_word_embeddings=tied)
    known = {} if in_file is None else {"lm_head.weight": in_file}
    folders.replace_arrays(theirs, arrays | known)
    found = folder.Folder.open(str(theirs))
    assert found.config.logits_via_embedding == embeds
    assert (names.LOGITS in found.shapes) == (not embeds)
    if not embeds:
      np.testing.assert_allclose(found.read(names.LOGITS), expected, rtol=1e-6)


def test_an_untied_folder_without_a_projection_says_what_is_used(theirs):
  """transformers 5 takes the embedding, too; 4 would have drawn one at random."""
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    folder.Folder.open(str(theirs))
    folders.set_arrays(theirs, lambda arrays: arrays.pop("lm_head.weight"))
    says = "no lm_head.weight.* logits come from shared.weight, as in tr"
    with pytest.raises(UserWarning, match=says):
      folder.Folder.open(str(theirs))
    folders.set_config(theirs, tie_word_embeddings=True)
    folder.Folder.open(str(theirs))


@pytest.mark.parametrize("convert_to", [to_t5x, to_theirs])
def test_a_conversion_that_fails_leaves_nothing(convert_to, theirs, tmp_path, capsys):
  source, made = theirs, tmp_path / "made"
  if convert_to is to_theirs:
    source = tmp_path / "ours"
    assert to_t5x(theirs, source) == 0
  # All programs are compiled by then, and none is kept by halves.
  assert convert_to(source, tmp_path / "first") == 0
  before = commands.contents(tmp_path)
  with files_of_at_most(500):
    assert convert_to(source, made) == 1
  assert commands.contents(tmp_path) == before
  assert "error: " in capsys.readouterr().err.splitlines()[-1]
  assert convert_to(source, made) == 0


def test_a_vocabulary_that_is_not_there_is_said_before_anything_is_written(
  theirs, tmp_path, capsys
):
  made = tmp_path / "ours"
  assert to_t5x(theirs, made) == 0
  before = commands.contents(tmp_path)
  assert to_theirs(made, tmp_path / "back", "--vocabulary=no.model") == 1
  assert "'no.model' is no file" in capsys.readouterr().err
  assert commands.contents(tmp_path) == before


UNIGRAM = {
  "model": {
    "type": "Unigram",
    "vocab": [[piece, 0.0] for piece in ("<pad>", "</s>", "<unk>", "▁", "a", "b")],
  }
}


def test_a_cache_that_can_t_be_written_is_what_is_wrong(tmp_path, monkeypatch):
  folder = tmp_path / "theirs"
  folder.mkdir()
  (folder / vocabulary.TOKENIZER).write_text(json.dumps(UNIGRAM))
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "file" / "cache"))
  says = "SPECDEC_T5X_CACHE.* folder that you may create files in"
  with pytest.raises(ValueError, match=says):
    vocabulary.processor(str(folder))
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "cache"))
  assert vocabulary.processor(str(folder)).encode("ab") == [3, 4, 5]


def test_a_network_keeps_its_activation(theirs):
  """Parameters of GELU and SiLU have one shape; config.json tells them apart."""
  folders.set_config(theirs, feed_forward_proj="gated-silu")
  settings = Checkpoint.open(str(theirs)).settings()
  assert settings.mlp_activations == ("silu", "linear")


def test_bytes_are_seqios(tmp_path):
  settings = {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 125}
  (tmp_path / vocabulary.SETTINGS).write_text(json.dumps(settings))
  (tmp_path / folders.CONFIG).write_text('{"vocab_size": 384}')
  theirs = vocabularies.sentencepiece_vocabulary(str(tmp_path), None)
  assert isinstance(theirs, seqio.ByteVocabulary)
  assert theirs.vocab_size == 384
  ours = vocabulary.processor(str(tmp_path))
  for text in TEXTS:
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == text
  assert ours.eos_id() == theirs.eos_id


def test_a_tokenizer_json_is_the_sentencepiece_model(tmp_path, monkeypatch):
  transformers = pytest.importorskip("transformers", reason="transformers is not here")
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "cache"))
  pieces = real_data.path("t5_spiece", "spiece.model")
  shutil.copyfile(pieces, tmp_path / vocabulary.PIECES)
  tokenizer = transformers.T5Tokenizer.from_pretrained(tmp_path)
  theirs = tmp_path / "theirs"
  tokenizer.save_pretrained(theirs)
  assert not (theirs / vocabulary.PIECES).exists()
  (theirs / folders.CONFIG).write_text('{"vocab_size": 32128}')
  ours, original = (vocabulary.processor(str(x)) for x in (theirs, tmp_path))
  question = real_data.DATA / "spec_bench" / "question.jsonl"
  lines = question.read_text().splitlines()[:200] if question.is_file() else []
  texts = [json.loads(line)["turns"][0] for line in lines]
  for text in [*TEXTS, *texts]:
    assert ours.encode(text) == original.encode(text)
    assert [*ours.encode(text), 1] == tokenizer(text).input_ids
    assert ours.decode(ours.encode(text)) == original.decode(original.encode(text))
  assert vocabulary.extra_ids(str(theirs)) == 100
  named = vocabularies.sentencepiece_vocabulary(str(theirs), None)
  assert named.vocab_size == 32100
  # As transformers numbers them, from the end.
  assert tokenizer("<extra_id_0>").input_ids[0] == 32099
  assert named.encode("<extra_id_0>") == [32099]


def bpe(folder):
  """A SentencePiece model as Gemma's, and what transformers makes of such a one."""
  words = [" ".join(tiny.sentences(400)), "\n\n", "Zürich  ½"]
  (folder / "text.txt").write_text("\n".join(words))
  special = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "eos_piece": "<eos>"}
  sentencepiece.SentencePieceTrainer.train(
    input=str(folder / "text.txt"),
    model_prefix=str(folder / "bpe"),
    model_type="bpe",
    vocab_size=275,
    byte_fallback=True,
    user_defined_symbols=["<start_of_turn>"],
    normalization_rule_name="identity",
    add_dummy_prefix=False,
    remove_extra_whitespaces=False,
    bos_piece="<bos>",
    minloglevel=2,
    **special,
  )
  made = vocabulary.processor(str(folder / "bpe.model"))
  pieces = [made.id_to_piece(i) for i in range(made.vocab_size())]
  scores = {p: made.get_score(i) for i, p in enumerate(pieces)}
  cuts = lambda piece: [(piece[:at], piece[at:]) for at in range(1, len(piece))]
  merges = [
    cut
    for piece in sorted(pieces, key=lambda piece: -scores[piece])
    for cut in cuts(piece)
    if set(cut) <= set(pieces)
  ]
  added = [{"content": p, "id": pieces.index(p)} for p in (*pieces[:4], pieces[4])]
  model = {"type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
  ids = {piece: number for number, piece in enumerate(pieces)}
  return made, {
    "model": {**model, "vocab": ids, "merges": merges},
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "added_tokens": added,
  }


def test_a_bpe_tokenizer_json_is_the_sentencepiece_model(tmp_path, monkeypatch):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "cache"))
  original, tokenizer = bpe(tmp_path)
  path = tmp_path / vocabulary.TOKENIZER
  path.write_text(json.dumps(tokenizer))
  found = vocabulary.processor(str(tmp_path))
  assert found.eos_id() == 1
  for text in [*TEXTS, *tiny.sentences(50, seed=3), "<start_of_turn>the  cat\n\n"]:
    assert found.encode(text) == original.encode(text)
    assert found.decode(found.encode(text)) == text
  assert vocabularies.sentencepiece_vocabulary(str(tmp_path), 0).eos_id == 1
  tokenizer["model"]["merges"].pop()
  path.write_text(json.dumps(tokenizer))
  vocabulary.model_of.cache_clear()
  with pytest.raises(ValueError, match="merges that are no SentencePiece model's"):
    vocabulary.processor(str(tmp_path))


def test_other_tokenizers_are_refused(tmp_path):
  path = tmp_path / vocabulary.TOKENIZER
  for model in ({"type": "BPE", "vocab": {}}, {"type": "Unigram", "vocab": [["a", 0]]}):
    path.write_text(json.dumps({"model": model}))
    with pytest.raises(ValueError, match="no unigram tokenizer as T5's"):
      vocabulary.processor(str(tmp_path))
