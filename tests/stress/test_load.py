"""A short run of `lab.stress.load` with a tiny random pair."""

import numpy as np
import pytest
import seqio

from lab.stress import memory
from lab.stress.load import Load, Service
from lab.stress.promises import Setting, broken_promises
from tests.contract.conftest import runtime_only
from tests.t5x_bridge import tiny

pytestmark = [pytest.mark.slow, runtime_only]

SETTINGS = (Setting(3, 0.0, 4), Setting(2, 1.0, 1))
EXAMPLES = 12
LENGTH = 10


@pytest.fixture(scope="module")
def service(tmp_path_factory):
  folder = tmp_path_factory.mktemp("pair")
  path = tiny.train_vocabulary(folder)
  rng = np.random.default_rng(0)
  inputs = rng.integers(3, 30, size=(EXAMPLES, LENGTH)).astype(np.int32)
  inputs[::3, 4:] = 0
  features = {
    "encoder_input_tokens": inputs,
    "decoder_input_tokens": np.zeros((EXAMPLES, LENGTH), np.int32),
  }
  return Service(
    tiny.save_t5x(folder / "target", tiny.TARGET),
    tiny.save_t5x(folder / "draft", tiny.DRAFT, seed=1),
    seqio.SentencePieceVocabulary(path, extra_ids=0),
    features,
    SETTINGS,
  )


@pytest.fixture(scope="module")
def load(service):
  load = Load(service, replays=0.2)
  load.warm_up()
  return load


def test_the_load_compiles_nothing_and_finds_no_mistakes(load):
  report = load.run(requests=20, every=0.1)
  assert (report.compilations, report.traces) == (0, 0)
  assert report.mistakes == []
  assert min(report.greedy, report.sampled, report.replays) > 0
  held = [sample.resident for sample in report.samples]
  # Loose, because in a short run allocators keep more memory than leaks would.
  assert max(held) - held[0] < 200 * memory.MIB
  assert report.samples[-1].arrays <= report.samples[1].arrays


def test_a_greedy_output_unlike_the_plain_output_is_a_mistake(load, monkeypatch):
  monkeypatch.setattr(load, "_expected", load._expected + 1)
  mistakes = load.run(requests=10).mistakes
  assert mistakes
  assert all("is not the plain output" in mistake for mistake in mistakes)


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
  lines = broken_promises(Setting(3, 1.0, 1), np.array([tokens]), aux, vocab_size=10)
  assert [line.split("broken: ")[1] for line in lines] == broken
