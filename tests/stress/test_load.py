"""Short runs of `lab.stress.load` and `lab.stress.restore`."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import seqio

from benchmarks.sizes import t5_1_1
from lab.stress import memory
from lab.stress.load import Load, broken_promises
from lab.stress.restore import make_pair
from tests.contract.conftest import runtime_only
from tests.processes import on_devices
from tests.t5x_bridge import tiny

pytestmark = [pytest.mark.slow, runtime_only]

SETTINGS = ((3, 0.0, 4), (2, 1.0, 1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pair")
  vocabulary = seqio.SentencePieceVocabulary(tiny.train_vocabulary(folder), extra_ids=0)
  inputs = np.random.default_rng(0).integers(3, 30, size=(12, 10)).astype(np.int32)
  inputs[::3, 4:] = 0
  pair = {
    "target": tiny.save_t5x(folder / "target", tiny.TARGET),
    "draft": tiny.save_t5x(folder / "draft", tiny.DRAFT, seed=1),
  }
  return Load(pair, vocabulary, inputs, SETTINGS, replays=0.2)


@pytest.fixture
def load(made, monkeypatch):
  for name, empty in (("counts", Counter()), ("mistakes", []), ("resources", [])):
    monkeypatch.setattr(made, name, empty)
  return made


def test_the_load_compiles_nothing_and_finds_no_mistakes(load):
  load.run(seconds=1.0, requests=20)
  assert load.counts["compilations and traces"] == 0
  assert load.mistakes == []
  assert min(load.counts[name] for name in ("greedy", "sampled", "replays")) > 0
  held, arrays, _ = zip(*load.resources, strict=True)
  # Loose, because in a short run allocators keep more memory than leaks would.
  assert max(held) - held[0] < 200 * memory.MIB
  assert arrays[-1] <= arrays[1]


def test_a_new_shape_is_counted_as_a_compilation(load, monkeypatch):
  monkeypatch.setattr(load, "inputs", load.inputs[:, :-1])
  load.run(seconds=0.0, requests=1)
  assert load.counts["compilations and traces"] > 0


def test_a_greedy_output_unlike_the_plain_output_is_a_mistake(load, monkeypatch):
  monkeypatch.setattr(load, "expected", load.expected + 1)
  load.run(seconds=0.0, requests=10)
  assert load.mistakes
  assert all("is not the plain output" in mistake for mistake in load.mistakes)


GOOD = {
  "tokens": 3,
  "target_calls": 2,
  "drafted": 6,
  "accepted": 1,
  "acceptance_positions": 3,
  "acceptance_mass": 1.2,
  "scores": -2.0,
}


RIGHT = [5, 9, 1, 0, 0]
ONE_MORE = "a call emits accepted tokens and one more"


@pytest.mark.parametrize(
  ("tokens", "change", "broken"),
  [
    (RIGHT, {}, []),
    (RIGHT, {"tokens": 4}, ["tokens are counted", ONE_MORE]),
    (
      RIGHT,
      {"accepted": 4},
      ["accepted tokens are emitted", "accepted tokens are tried"],
    ),
    (RIGHT, {"drafted": 7}, ["drafts have at most gamma tokens"]),
    (RIGHT, {"drafted": 2}, ["tried tokens are drafted"]),
    (RIGHT, {"acceptance_mass": 3.5}, ["mass is a probability"]),
    (RIGHT, {"scores": 0.5}, ["scores are log-probabilities"]),
    (RIGHT, {"target_calls": 4}, ["each call emits"]),
    ([5, 10, 1, 0, 0], {}, ["tokens are in the vocabulary"]),
    ([5, 9, 1, 0, 4], {}, ["nothing follows EOS"]),
  ],
)
def test_broken_promises_are_named(tokens, change, broken):
  aux = {name: np.array([value]) for name, value in {**GOOD, **change}.items()}
  assert broken_promises(3, np.array([tokens]), aux, vocab_size=10) == broken


@pytest.mark.parametrize(("grows", "is_flat"), [(0, True), (10, True), (30, False)])
def test_memory_is_flat_within_twenty_mebibytes(load, grows, is_flat):
  sizes = 500 + grows * np.linspace(-1, 1, 40).round()
  load.resources = [(int(size * memory.MIB), 0, 0) for size in sizes]
  assert load.is_flat() == is_flat


# ---- Memory for restoring on eight devices. ----

# 27e6 parameters; each dimension that the mesh divides is a multiple of eight.
TARGET = dataclasses.replace(
  t5_1_1("small"),
  vocab_size=8192,
  num_heads=8,
  mlp_dim=2048,
  num_encoder_layers=2,
  num_decoder_layers=2,
)
DRAFT = dataclasses.replace(t5_1_1("tiny"), vocab_size=8192)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
  """Measures restoring on eight devices in a separate process; outcomes by format."""
  pairs = make_pair(tmp_path_factory.mktemp("pairs"), TARGET, DRAFT)
  # The first restoring of a format also loads libraries, so restore the drafts first.
  jobs = [pair | {"target": pair["draft"]} for pair in pairs.values()]
  jobs += [pair | {"devices": 8} for pair in pairs.values()]
  program = f"from lab.stress import restore; restore.print_measured({jobs})"
  found = on_devices(8, "-c", program)
  return dict(zip(pairs, found[len(pairs) :], strict=True))


@pytest.fixture(params=("t5x", "orbax"))
def outcome(request, outcomes):
  return outcomes[request.param]


def test_a_device_holds_only_its_shards(outcome):
  assert outcome["undivided"] == []
  assert outcome["wrong"] == []
  # Every device holds the layer norms and the draft's position biases whole.
  assert outcome["largest_device"] < 1.01 * outcome["parameters"] / 8


def test_restoring_makes_no_second_copy_in_host_memory(outcome):
  # Loose: libraries and allocators keep some 40 MiB. 1e9 parameters take 1.03 to 1.15.
  assert outcome["peak"] < 1.8 * outcome["held"]
