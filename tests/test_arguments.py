"""Arguments that Python's entry points refuse, by Python's names, or accept."""

import dataclasses
import json
import pathlib
from collections import UserDict

import jax.numpy as jnp
import numpy as np
import pytest

import specdec_t5x
from specdec_t5x import Sampling, api, environment
from specdec_t5x.core.describe import describe
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.hugging_face import generation
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.network.functional import network_for
from tests import table
from tests.t5x_bridge import tiny, tiny_gpt

TEXTS = tiny.sentences(2, seed=6)
SIZES = {"max_length": 5, "batch_size": 2}

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
  target, draft = (
    api.Model(network_for(config), table.drawn(config))
    for config in (tiny.TARGET, tiny.DRAFT)
  )
  vocabulary = tiny.train_vocabulary(tmp_path_factory.mktemp("arguments"))
  return {"target": target, "draft": draft, "vocabulary": vocabulary}


@pytest.mark.parametrize(
  ("inputs", "message"),
  [
    (None, "inputs must be a list of texts, got None"),
    (b"bytes", "inputs must be a list of texts, got a single bytes"),
    ("text", r"got a single str. Wrap the text in \[...\]"),
    ([None, "a"], r"inputs\[0\] must be a text \(str\), got None"),
    (["a", b"b"], r"inputs\[1\] must be a text \(str\), got b'b'. Decode"),
    (["a", ["b"]], r"inputs\[1\] must be a text \(str\), got \['b'\]"),
    (["a", "b\udc80c"], r"inputs\[1\] must be Unicode, .* at character 1"),
    ({"input_ids": [[5, 1]]}, r"got a dict of \['input_ids'\]. Give inputs\[key\]"),
    (UserDict(text=["a"]), r"got a UserDict of \['text'\]. Give inputs\[key\]"),
    ({"a"}, r"got a set of \['a'\]. Give a list"),
    ([{"text": "a"}], r"inputs\[0\] must be a text \(str\), got {'text': 'a'}"),
    (np.array("text"), r"inputs must be a list of texts, got array\('text'"),
    (jnp.array(5), "inputs must be a list of texts, got"),
    ([5, 6, 1], r"the token ids of a single input: \[5, 6, 1\]. Wrap the ids"),
    (np.ma.array([[5, 9], [7, 1]]), "^inputs must be an array without a mask, got a"),
    ([np.ma.array([5, 1], mask=[0, 1])], r"inputs\[0\].filled\(0\) if the masked"),
    ([[[5, 1]]], r"inputs\[0\] must be a list of token ids"),
    (np.ones((1, 2)), r"inputs\[0\] must be a list of token ids"),
    (np.ones((1, 2), bool), r"inputs\[0\] must be a list of token ids"),
    ([[5, tiny.VOCAB_SIZE]], r"inputs\[0\] must be a list of token ids"),
    (["a", [5]], r"inputs\[1\] must be a text"),
    ([[5, 1], [0, 5]], r"inputs\[1\] must have padding at the end alone, got \[0, 5\]"),
    (np.array([[0, 0, 5, 0]]), r"got \[0, 0, 5\], which begins with 0. Pad on the rig"),
  ],
  ids=ascii,
)
def test_an_input_that_is_not_a_text_is_named(setup, inputs, message):
  with pytest.raises(ValueError, match=message):
    specdec_t5x.generate(inputs, **setup, **SIZES)


IDS = [[5, 9, 4, 1], [7, 1], [3, 8, 2, 6, 1]]
RECTANGLE = np.array([[*ids, *[0] * (7 - len(ids))] for ids in IDS])


@pytest.mark.parametrize(
  "padded",
  [
    RECTANGLE,
    RECTANGLE.tolist(),
    jnp.array(RECTANGLE),
    RECTANGLE.astype(np.uint16),
    [jnp.array(ids) for ids in IDS],
    tuple(RECTANGLE),
    iter(RECTANGLE),
  ],
  ids=lambda x: type(x).__name__,
)
def test_padded_ids_give_the_tokens_of_the_ids(setup, padded):
  words = {**setup, "draft": None, **SIZES}
  expected = specdec_t5x.generate(IDS, **words)
  assert specdec_t5x.generate(padded, **words) == expected
  assert len({tuple(output.tokens) for output in expected}) > 1


@pytest.mark.parametrize(
  "inputs", [[[]], [[5, 1], []], np.zeros((2, 3), int), np.zeros((2, 0), int)], ids=str
)
def test_an_encoder_needs_a_token(setup, inputs):
  with pytest.raises(ValueError, match=r"inputs\[[01]\] has no tokens, but .* one"):
    specdec_t5x.generate(inputs, **setup, **SIZES)


@pytest.mark.parametrize("inputs", [[[]], [[], [5]], np.zeros((2, 3), int)], ids=str)
def test_a_decoder_only_prompt_may_be_empty(setup, inputs):
  config = tiny_gpt.TARGET
  target = api.Model(network_for(config), table.drawn(config))
  words = {"vocabulary": setup["vocabulary"], **SIZES}
  outputs = specdec_t5x.generate(inputs, target, None, **words)
  assert outputs[0] == specdec_t5x.generate([""], target, None, **words)[0]


EMPTY = {"list": [], "tuple": (), "array": np.zeros((0, 3), int), "iterator": iter([])}


@pytest.mark.parametrize("inputs", EMPTY.values(), ids=EMPTY)
def test_no_inputs_give_no_outputs(setup, inputs):
  assert specdec_t5x.generate(inputs, **setup, **SIZES) == []


def test_a_folder_s_padding_is_padding(setup):
  target = dataclasses.replace(setup["target"], generation=Generation(pads=(0, 4)))
  words = {**setup, "target": target, "draft": None, **SIZES}
  padded = [[5, 4, 9, 1, 4, 4], [7, 1, 4, 0, 4]]
  expected = specdec_t5x.generate([[5, 4, 9, 1], [7, 1]], **words)
  assert specdec_t5x.generate(padded, **words) == expected
  with pytest.raises(ValueError, match=r"inputs\[0\] must have padding at the end"):
    specdec_t5x.generate([[4, 7, 1]], **words)


@pytest.mark.parametrize(
  ("fields", "pads"),
  [
    ({}, (0,)),
    ({"pad_token_id": 0}, (0,)),
    ({"pad_token_id": 3}, (0, 3)),
    ({"pad_token_id": 1, "eos_token_id": 1}, (0,)),
    ({"pad_token_id": -1}, (0,)),
    ({"pad_token_id": [3]}, (0,)),
  ],
  ids=str,
)
def test_a_folder_names_its_padding(tmp_path, fields, pads):
  (tmp_path / "config.json").write_text(json.dumps(fields))
  assert generation.read(tmp_path).pads == pads


@pytest.mark.parametrize(
  ("argument", "value", "message"),
  [
    ("target", "runs/t", r"target must be a Model, .*target=load_model\('runs/t'\)"),
    ("target", pathlib.Path("t"), r"got the path 't'.*target=load_model\('t'\)"),
    ("target", None, "target must be a Model, got NoneType"),
    ("draft", pathlib.Path("d"), r"draft must be a Model.*draft=load_model\('d'\)"),
    ("draft", {"draft": "d"}, r"draft\['draft'\] must be a Model, got the path 'd'"),
    ("draft", 3, "draft must be a Model, a drafter's name or None, got int"),
    ("draft", "copie", "Unknown drafter 'copie'"),
    ("sampling", 0.7, r"got 0.7. Pass Sampling\(temperature=0.7\)"),
    ("sampling", None, "sampling must be a Sampling, got None"),
    ("seed", None, "seed must be a whole number from 0"),
    ("seed", -1, "seed must be a whole number from 0 to .*, got -1"),
    ("seed", True, "seed must be a whole number from 0 to .*, got True"),
    ("vocabulary", None, "vocabulary must be given"),
    ("vocabulary", pathlib.Path("nope"), "vocabulary='nope' is not a file"),
    ("vocabulary", "google/mt5-small", "Nothing is downloaded"),
    ("batch_size", True, "batch_size must be a whole number of at least 1, got True"),
    ("max_length", np.float32(3), "max_length must be a whole number"),
    ("gamma", 0, "^gamma must be a whole number of at least 1, got 0"),
    ("gamma", 10**7, "at most 4096 tokens, got gamma .* = 10000000. Lower gamma"),
    (
      "gamma",
      5,
      r"^gamma=5 is too long a draft.*Lower gamma.* longer outputs \(max_length\)",
    ),
    ("num_candidates", None, "^num_candidates must be a whole number"),
    ("drafter", "tok", "^Unknown drafter 'tok'"),
    ("policy", "auto2", "^Unknown policy 'auto2'"),
    ("rule", "tok", "Correct rule.$"),
  ],
  ids=ascii,
)
def test_a_bad_argument_is_refused_by_name(setup, argument, value, message):
  words = {**setup, **SIZES, argument: value}
  with pytest.raises(ValueError, match=message):
    specdec_t5x.generate(TEXTS, **words)


@pytest.mark.parametrize(
  ("words", "message"),
  [
    ({"dtype": "float33"}, "Set dtype to 'bfloat16'"),
    ({"weights": "int4"}, "^weights must be one of"),
  ],
  ids=str,
)
def test_load_model_s_messages_name_its_arguments(tmp_path, words, message):
  path = tiny.save_t5x(tmp_path / "t", tiny.TARGET, seed=1)
  with pytest.raises(ValueError, match=message) as caught:
    specdec_t5x.load_model(pathlib.Path(path), **words)
  assert "PARAM_DTYPE" not in str(caught.value)


@pytest.mark.parametrize(
  "words",
  [
    {"gamma": np.int64(2), "seed": np.uint32(3), "max_length": np.int16(5)},
    {"gamma": np.int32(2), "batch_size": np.int64(2), "num_candidates": np.int8(1)},
    {"drafter": np.int64(3), "draft": None},
  ],
  ids=str,
)
def test_paths_and_numpy_numbers_are_accepted(setup, words):
  vocabulary = pathlib.Path(setup["vocabulary"])
  if "drafter" in words:
    words = {**words, "drafter": Quantized(gamma=words["drafter"])}
  words = {**setup, **SIZES, **words, "vocabulary": vocabulary}
  plain = specdec_t5x.generate(np.array(TEXTS), **{**words, "seed": 3})
  python_words = {
    n: int(x) if isinstance(x, np.integer) else x for n, x in words.items()
  }
  assert plain == specdec_t5x.generate(tuple(TEXTS), **{**python_words, "seed": 3})


def test_a_description_has_python_s_numbers():
  description = describe(Quantized(np.int64(4), gamma=np.int32(2)))
  assert description["bits"] == 4
  assert [type(description[name]) for name in ("bits", "group", "gamma")] == [int] * 3


@pytest.mark.parametrize("draft", ["draft", None], ids=str)
@pytest.mark.parametrize("length", [10**7, 10**12])
def test_caches_that_do_not_fit_are_refused(setup, monkeypatch, length, draft):
  monkeypatch.setattr(environment, "of_device", lambda: 10**8)
  words = {**setup, **SIZES, "draft": draft and setup[draft], "max_length": length}
  with pytest.raises(ValueError, match=rf"max_length={length} needs [\d,]+ bytes"):
    specdec_t5x.generate(TEXTS, **words, sampling=Sampling(1.0))


def test_a_longer_cache_takes_the_bytes_of_its_keys_and_values(setup):
  target = setup["target"]
  config = tiny.TARGET
  decoder, params = api.assembled(target)

  def size(length):
    return environment.of_caches(
      environment.Job(decoder, 3, 16, Sampling(), length), params
    )

  width = config.num_heads * config.head_dim
  # Keys and values in float32 for every row and layer, and the token's ID.
  token_bytes = 3 * (2 * config.num_decoder_layers * width * 4 + 4)
  assert size(1000) - size(500) == 500 * token_bytes
