"""A short run of `lab.stress.load` with a tiny random pair."""

from collections import Counter

import numpy as np
import pytest
import seqio

from lab.stress.load import Load, broken_promises
from tests import memory
from tests.contract.conftest import runtime_only
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
  """Returns a load without requests and mistakes."""
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
