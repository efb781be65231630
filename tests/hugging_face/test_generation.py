"""Generation settings of a folder are applied, named or refused."""

import dataclasses
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

import specdec_t5x
from lab.peers import hf_folder
from specdec_t5x.hugging_face import generation
from specdec_t5x.vocabularies.opening import open_vocabulary
from tests import networks
from tests.errors import folders
from tests.t5x_bridge import tiny

IDS = [[5, 9, 7, 1], [8, 1], [6, 6, 4, 1], [12, 3, 1]]
LENGTH = 10


@pytest.fixture
def theirs(tmp_path):
  """Returns a folder with a network that gives different outputs with many tokens."""
  params = networks.drawn(tiny.TARGET, seed=3)
  hf_folder.write(str(tmp_path / folders.NAME), tiny.TARGET, params)
  return tmp_path / folders.NAME


def set_fields(folder, name=generation.GENERATION, **fields):
  folders.set_json(folder / name, fields)


def decoded(folder, draft=None, inputs=IDS, **words):
  target = specdec_t5x.load_model(str(folder))
  outputs = specdec_t5x.generate(inputs, target, draft, max_length=LENGTH, **words)
  return [output.tokens for output in outputs]


def until(row, ends):
  place = next((i for i, token in enumerate(row) if token in ends), len(row))
  return row[: place + 1]


# (generation_config.json, config.json, end tokens); the vocabulary's EOS is 1.
ENDS = {
  "one": ({"eos_token_id": 7}, {}, (7,)),
  "several": ({"eos_token_id": [1, 7]}, {"eos_token_id": 3}, (1, 7)),
  "twice the same": ({"eos_token_id": [7, 7]}, {}, (7,)),
  "config.json alone": ({}, {"eos_token_id": [9, 4]}, (9, 4)),
  "null": ({"eos_token_id": None}, {"eos_token_id": 9}, (9,)),
  "a decoder's own": ({}, {"eos_token_id": None, "decoder": {"eos_token_id": 4}}, (4,)),
}


@pytest.mark.parametrize("how", ENDS)
def test_end_tokens_come_from_the_folder(how, theirs):
  own, config, expected = ENDS[how]
  set_fields(theirs, **own)
  set_fields(theirs, generation.CONFIG, **config)
  assert generation.read(theirs).eos_ids == expected


@pytest.mark.parametrize(
  ("ends", "draft"),
  [((30,), None), ((21, 30, 53), "quantized"), ((1, 57, 25), "copy")],
)
def test_outputs_end_at_the_folder_s_end_tokens(ends, draft, theirs):
  set_fields(theirs, eos_token_id=tiny.VOCAB_SIZE - 1)
  rows = decoded(theirs)
  set_fields(theirs, eos_token_id=list(ends))
  expected = [until(row, ends) for row in rows]
  assert any(len(row) < LENGTH for row in expected)
  assert decoded(theirs, draft) == expected
  assert decoded(theirs, draft, batch_size=2) == expected


@pytest.mark.parametrize(
  ("name", "fields", "start"),
  [
    (generation.GENERATION, {"decoder_start_token_id": 63}, 63),
    (generation.CONFIG, {"decoder_start_token_id": 9}, 9),
    (generation.CONFIG, {"decoder_start_token_id": None, "pad_token_id": 6}, 6),
  ],
)
def test_decoding_starts_from_the_folder_s_start_token(name, fields, start, theirs):
  """Without a start token, decoding starts from padding."""
  set_fields(theirs, name, **fields)
  model = specdec_t5x.load_model(str(theirs))
  assert model.network.config.start_token == start
  variables = {"params": model.params}
  inputs = jnp.array([IDS[0]], jnp.int32)
  fed = jnp.array([[start, 6]], jnp.int32)
  logits = model.network.apply(
    variables, inputs, fed, jnp.ones_like(fed), enable_dropout=False
  )
  set_fields(theirs, eos_token_id=1)
  first = decoded(theirs, inputs=IDS[:1])[0][0]
  assert first == int(np.argmax(logits[0, 0]))


REFUSED = {
  "forced_bos_token_id": 5,
  "forced_eos_token_id": 1,
  "no_repeat_ngram_size": 3,
  "suppress_tokens": [4],
  "begin_suppress_tokens": [4],
  "bad_words_ids": [[4]],
  "repetition_penalty": 1.3,
  "min_length": 5,
  "min_new_tokens": 2,
  "guidance_scale": 1.5,
  "stop_strings": ["."],
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("file", [generation.GENERATION, generation.CONFIG])
def test_settings_that_change_the_distribution_are_refused(name, file, theirs):
  set_fields(theirs, file, **{name: REFUSED[name]})
  model = specdec_t5x.load_model(str(theirs))
  message = rf"/{file} sets {name}=.* Remove {name} from the file"
  with pytest.raises(ValueError, match=message):
    specdec_t5x.generate(IDS, model, None)


def test_settings_of_a_draft_are_ignored(theirs):
  target = specdec_t5x.load_model(str(folders.write(theirs.parent / "target")))
  set_fields(theirs, no_repeat_ngram_size=3, eos_token_id=9)
  draft = specdec_t5x.load_model(str(theirs))
  found = specdec_t5x.generate(IDS, target, draft, gamma=3, max_length=LENGTH)
  alone = specdec_t5x.generate(IDS, target, None, max_length=LENGTH)
  assert [x.tokens for x in found] == [x.tokens for x in alone]


def test_choices_are_named_with_their_files_and_left_to_the_caller(theirs):
  plain = decoded(theirs)
  set_fields(theirs, num_beams=4, do_sample=True)
  set_fields(theirs, generation.CONFIG, num_beams=2, top_k=10, temperature=0.7)
  match = (
    f"{generation.GENERATION}: do_sample=True, num_beams=4;"
    f".*{generation.CONFIG}: temperature=0.7, top_k=10 not applied"
  )
  with pytest.warns(UserWarning, match=match):
    assert decoded(theirs) == plain


def test_settings_without_effect_are_not_named(theirs):
  fields = {"num_beams": 1, "do_sample": False, "top_k": 50, "min_length": 0}
  fields |= {"suppress_tokens": [], "guidance_scale": 1, "min_new_tokens": 0}
  set_fields(theirs, **fields, min_p=0, repetition_penalty=1)
  found = generation.read(theirs)
  assert not found.note()
  found.check()


WRONG = {
  "a truth value": ({"decoder_start_token_id": True}, "must be a token id, got True"),
  "several starts": ({"decoder_start_token_id": [1, 2]}, "must be a token id, got"),
  "a start too large": ({"decoder_start_token_id": 99}, "must be below the network's"),
}


@pytest.mark.parametrize("how", WRONG)
def test_an_invalid_token_id_is_refused(how, theirs):
  fields, message = WRONG[how]
  set_fields(theirs, **fields)
  with pytest.raises(ValueError, match=message):
    specdec_t5x.load_model(str(theirs))


def test_token_ids_need_no_vocabulary_if_the_folder_has_end_tokens(theirs):
  target = specdec_t5x.load_model(str(theirs))
  outputs = specdec_t5x.generate(IDS, target, "quantized", max_length=LENGTH)
  assert all(output.text == "" and output.tokens for output in outputs)
  arrays = [np.array(ids) for ids in IDS]
  again = specdec_t5x.generate(arrays, target, None, max_length=LENGTH)
  assert [x.tokens for x in outputs] == [x.tokens for x in again]


def test_texts_are_read_by_the_folder_s_own_vocabulary(theirs, tmp_path, monkeypatch):
  texts = tiny.sentences(3, seed=5)
  with pytest.raises(ValueError, match=f"{theirs.name}.* vocabulary"):
    decoded(theirs, inputs=texts)
  pieces = tiny.train_vocabulary(tmp_path)
  shutil.copy(pieces, theirs / "spiece.model")
  expected = decoded(theirs, inputs=texts, vocabulary=str(theirs))
  assert decoded(theirs, inputs=texts) == expected
  assert decoded(theirs, inputs=texts, vocabulary=pieces) == expected
  monkeypatch.chdir(theirs.parent)
  target = specdec_t5x.load_model(theirs.name, weights="int8")
  monkeypatch.chdir(tmp_path)
  assert specdec_t5x.generate(texts, target, None, max_length=LENGTH)[0].text


def test_a_text_ends_before_the_folder_s_end_token(theirs, tmp_path):
  """The folder's end tokens count, not the EOS of a vocabulary from another place."""
  ends = (10, 11, 6)
  pieces = tiny.train_vocabulary(tmp_path)
  target = specdec_t5x.load_model(str(theirs))
  target = dataclasses.replace(target, generation=generation.Generation(ends))
  outputs = specdec_t5x.generate(IDS, target, None, pieces, max_length=LENGTH)
  vocabulary = open_vocabulary(pieces)
  has_end = [output.tokens[-1] in ends for output in outputs]
  assert any(has_end)
  for output, ended in zip(outputs, has_end, strict=True):
    kept = output.tokens[:-1] if ended else output.tokens
    assert output.text == vocabulary.decode(kept)


@pytest.mark.parametrize("vocabulary", [False, True])
def test_decoding_without_an_end_token_is_refused(vocabulary, theirs):
  set_fields(theirs, generation.CONFIG, eos_token_id=None)
  folders.tokenizer_without_end(theirs)
  target = specdec_t5x.load_model(str(theirs))
  with pytest.raises(ValueError, match=r"No end token is known.*vocabulary"):
    specdec_t5x.generate(IDS, target, None, theirs if vocabulary else None)
