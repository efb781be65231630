"""Hugging Face's folders as this library reads and writes them, without torch."""

import contextlib
import json
import resource
import shutil
import warnings

import flax
import jax
import numpy as np
import pytest
import safetensors.numpy
import seqio

import specdec_t5x
from specdec_t5x import convert
from specdec_t5x.checkpoints.checkpoint import Checkpoint
from specdec_t5x.data import vocabularies
from specdec_t5x.hugging_face import folder, names, vocabulary
from tests import commands, real_data
from tests.errors import folders
from tests.t5x_bridge import tiny

TEXTS = [
  "the old man sees a red house",
  "a  cat\tsees the   dog",
  "Zürich, ½ of ﬁve",
  "",
]


def equal(a, b):
  a, b = map(flax.core.unfreeze, (a, b))
  return jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), a, b))


@pytest.mark.parametrize("how", ["t5x", "orbax"])
def test_a_folder_becomes_a_checkpoint_and_a_folder_again(how, tmp_path):
  source, made = str(folders.write(tmp_path / "theirs")), str(tmp_path / "ours")
  assert convert.main([f"--from={source}", f"--to={made}", f"--format={how}"]) == 0
  read, kept = (specdec_t5x.load_model(x) for x in (source, f"{made}/checkpoint_0"))
  assert read.network.config == kept.network.config == tiny.TARGET
  assert equal(read.params, kept.params)
  back = str(tmp_path / "back")
  flags = ["--to-hugging-face", f"--from={made}/checkpoint_0", f"--to={back}"]
  assert convert.main(flags) == 0
  one, other = (
    safetensors.numpy.load_file(f"{x}/{folders.WEIGHTS}") for x in (source, back)
  )
  assert one.keys() == other.keys()
  assert equal(one, other)


def test_an_output_folder_is_never_overwritten(tmp_path, capsys):
  source, made = folders.write(tmp_path / "theirs"), tmp_path / "ours"
  for _ in range(2):
    code = convert.main([f"--from={source}", f"--to={made}"])
  assert code == 1
  assert "holds a checkpoint_0 already" in capsys.readouterr().err
  flags = ["--to-hugging-face", f"--from={made}/checkpoint_0", f"--to={source}"]
  assert convert.main(flags) == 1
  assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize("name", [*names.ALIASES, "lm_head.weight"])
def test_the_embedding_may_have_another_name(name, tmp_path):
  made = folders.write(tmp_path / "theirs")
  arrays = safetensors.numpy.load_file(made / folders.WEIGHTS)
  expected = arrays["shared.weight"] if name in names.ALIASES else arrays[name]
  arrays[name] = arrays.pop("shared.weight") if name in names.ALIASES else expected
  arrays.pop("shared.weight", None)
  arrays[names.UNUSED] = np.zeros((32, 2), np.float32)
  safetensors.numpy.save_file(arrays, made / folders.WEIGHTS, {"format": "pt"})
  found = folder.Folder.open(str(made)).read(names.EMBEDDING)
  np.testing.assert_array_equal(found, expected)


def test_logits_go_by_what_is_in_the_file(tmp_path):
  made = folders.write(tmp_path / "theirs")
  config = json.loads((made / folders.CONFIG).read_text())
  arrays = safetensors.numpy.load_file(made / folders.WEIGHTS)
  head, shared = arrays["lm_head.weight"], arrays["shared.weight"]
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
    (made / folders.CONFIG).write_text(
      json.dumps(config | {"tie_word_embeddings": tied})
    )
    known = {} if in_file is None else {"lm_head.weight": in_file}
    others = {name: x for name, x in arrays.items() if name != "lm_head.weight"}
    safetensors.numpy.save_file(
      others | known, made / folders.WEIGHTS, {"format": "pt"}
    )
    found = folder.Folder.open(str(made))
    assert found.config.logits_via_embedding == embeds
    assert (names.LOGITS in found.shapes) == (not embeds)
    if not embeds:
      np.testing.assert_allclose(found.read(names.LOGITS), expected, rtol=1e-6)


def test_an_untied_folder_without_a_projection_says_what_is_used(tmp_path):
  """transformers 5 takes the embedding, too; 4 would have drawn one at random."""
  made = folders.write(tmp_path / "theirs")
  arrays = safetensors.numpy.load_file(made / folders.WEIGHTS)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    folder.Folder.open(str(made))
    arrays.pop("lm_head.weight")
    safetensors.numpy.save_file(arrays, made / folders.WEIGHTS, {"format": "pt"})
    says = "no lm_head.weight.* logits come from shared.weight, as in tr"
    with pytest.raises(UserWarning, match=says):
      folder.Folder.open(str(made))
    config = json.loads((made / folders.CONFIG).read_text())
    (made / folders.CONFIG).write_text(
      json.dumps(config | {"tie_word_embeddings": True})
    )
    folder.Folder.open(str(made))


@contextlib.contextmanager
def files_of_at_most(size):
  """No file of this process grows beyond so many bytes, as on a full disk."""
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("how", ["t5x", "hugging face"])
def test_a_conversion_that_fails_leaves_nothing(how, tmp_path, capsys):
  source, made = str(folders.write(tmp_path / "theirs")), str(tmp_path / "made")
  flags = [f"--from={source}"]
  if how == "hugging face":
    assert convert.main([f"--from={source}", f"--to={tmp_path}/ours"]) == 0
    flags = ["--to-hugging-face", f"--from={tmp_path}/ours/checkpoint_0"]
  # All programs are compiled by then, and none is kept by halves.
  assert convert.main([*flags, f"--to={tmp_path}/first"]) == 0
  before = commands.contents(tmp_path)
  with files_of_at_most(500):
    assert convert.main([*flags, f"--to={made}"]) == 1
  assert commands.contents(tmp_path) == before
  assert "error: " in capsys.readouterr().err.splitlines()[-1]
  assert convert.main([*flags, f"--to={made}"]) == 0


def test_a_vocabulary_that_is_not_there_is_said_before_anything_is_written(
  tmp_path, capsys
):
  source = str(folders.write(tmp_path / "theirs"))
  assert convert.main([f"--from={source}", f"--to={tmp_path}/ours"]) == 0
  before = commands.contents(tmp_path)
  flags = ["--to-hugging-face", f"--from={tmp_path}/ours/checkpoint_0"]
  flags += [f"--to={tmp_path}/made", "--vocabulary=no.model"]
  assert convert.main(flags) == 1
  assert "'no.model' is no file" in capsys.readouterr().err
  assert commands.contents(tmp_path) == before


UNIGRAM = {
  "model": {
    "type": "Unigram",
    "vocab": [[piece, 0.0] for piece in ("<pad>", "</s>", "<unk>", "▁", "a", "b")],
  }
}


def test_a_cache_that_can_t_be_written_is_what_is_wrong(tmp_path, monkeypatch):
  theirs = tmp_path / "theirs"
  theirs.mkdir()
  (theirs / vocabulary.TOKENIZER).write_text(json.dumps(UNIGRAM))
  (tmp_path / "file").write_text("")
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "file" / "cache"))
  says = "SPECDEC_T5X_CACHE.* folder that you may create files in"
  with pytest.raises(ValueError, match=says):
    vocabulary.processor(str(theirs))
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "cache"))
  assert vocabulary.processor(str(theirs)).encode("ab") == [3, 4, 5]


def test_a_network_keeps_its_activation(tmp_path):
  """Parameters of GELU and SiLU have one shape; config.json tells them apart."""
  made = folders.write(tmp_path / "theirs")
  config = json.loads((made / folders.CONFIG).read_text())
  changed = config | {"feed_forward_proj": "gated-silu"}
  (made / folders.CONFIG).write_text(json.dumps(changed))
  assert Checkpoint.open(str(made)).settings().mlp_activations == ("silu", "linear")


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


@pytest.fixture(scope="module")
def t5_pieces():
  path = real_data.DATA / "t5_spiece" / "spiece.model"
  if not path.is_file():
    pytest.skip(f"{path} is not here")
  return path


def test_a_tokenizer_json_is_the_sentencepiece_model(t5_pieces, tmp_path, monkeypatch):
  transformers = pytest.importorskip("transformers", reason="transformers is not here")
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path / "cache"))
  shutil.copyfile(t5_pieces, tmp_path / vocabulary.PIECES)
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


def test_other_tokenizers_are_refused(tmp_path):
  path = tmp_path / vocabulary.TOKENIZER
  for model in ({"type": "BPE", "vocab": {}}, {"type": "Unigram", "vocab": [["a", 0]]}):
    path.write_text(json.dumps({"model": model}))
    with pytest.raises(ValueError, match="no unigram tokenizer as T5's"):
      vocabulary.processor(str(tmp_path))
  path.unlink()
  with pytest.raises(ValueError, match="has no vocabulary"):
    vocabulary.processor(str(tmp_path))
