"""`specdec_t5x.serve` gives the target's outputs while the draft learns."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

import specdec_t5x
from specdec_t5x import Learner, Online, Sampling, api
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.hugging_face.generation import Generation
from specdec_t5x.network.functional import network_for
from specdec_t5x.training.optimizers import Optimizer, Schedule
from specdec_t5x.training.state import make_train_step
from tests.t5x_bridge import tiny
from tests.training.conftest import assert_same, params_of

pytestmark = pytest.mark.slow

TEXTS = tiny.sentences(11, seed=4)
FAST = Online(3, 4, optimizer=Optimizer(Schedule("constant", 0.02, 0), "adam"))
STILL = Online(3, 4, optimizer=Optimizer(Schedule("constant", 1e-20, 0), "adam"))
# Requests are served two at a time, and the draft learns from three at a time.
ROOM = {"input_length": 32, "max_length": 10, "batch_size": 2}


@pytest.fixture(scope="module")
def setup(tmp_path_factory):
  network = network_for(tiny.DRAFT)
  models = (api.Model(network, params_of(network, seed, 2.0)) for seed in (1, 2))
  return *models, tiny.train_vocabulary(tmp_path_factory.mktemp("serving"))


def stream(setup, texts=TEXTS, online=FAST, learner=None, **settings):
  target, draft, vocabulary = setup
  learner = learner or Learner(draft.network, draft.params, online)
  settings = {**ROOM, "gamma": 3, **settings}
  return specdec_t5x.serve(texts, target, learner, vocabulary, **settings), learner


def served(*args, **settings):
  outputs, learner = stream(*args, **settings)
  return list(outputs), learner


def test_greedy_outputs_are_the_target_s_own_while_the_draft_learns(setup):
  target, draft, vocabulary = setup
  outputs, learner = served(setup)
  expected = specdec_t5x.generate(TEXTS, target, None, vocabulary, max_length=10)
  assert [o.tokens for o in outputs] == [o.tokens for o in expected]
  assert learner.steps == 4
  changed = jax.tree.map(lambda a, b: (a != b).any(), learner.params, draft.params)
  assert all(jax.tree.leaves(changed))


def test_the_draft_learns_from_repeated_requests(setup):
  texts = TEXTS[:3] * 30
  outputs, _ = served(setup, texts)
  calls = np.array([o.target_calls for o in outputs]).reshape(-1, 3).sum(axis=1)
  assert calls[-1] < 0.7 * calls[0]


def test_serving_compiles_once_for_a_changing_draft(setup, monkeypatch):
  traced = []
  decode = Decoder.decode

  def counted(*args, **words):
    return traced.append(1) or decode(*args, **words)

  monkeypatch.setattr(Decoder, "decode", counted)
  api.compiled.cache_clear()
  make_train_step.cache_clear()
  _, learner = served(setup)
  served(setup, TEXTS[:4], learner=learner)
  assert len(traced) == 1
  assert learner.step_fn._cache_size() == 1


def test_learning_continues_across_calls(setup):
  outputs, single_call = served(setup, TEXTS[:6])
  first, two_calls = served(setup, TEXTS[:3])
  second, _ = served(setup, TEXTS[3:6], learner=two_calls)
  assert first + second == outputs
  assert_same(single_call.state, two_calls.state)


def test_requests_are_read_lazily(setup):
  read = []
  requests = (read.append(text) or text for text in itertools.cycle(TEXTS))
  outputs, learner = stream(setup, requests)
  next(outputs)
  assert (len(read), learner.steps) == (3, 0)
  for _ in range(3):
    next(outputs)
  assert (len(read), learner.steps) == (6, 1)


def test_samples_depend_on_the_seed_and_on_earlier_requests(setup):
  """Later calls draw anew, since the draft has learned from the earlier draws."""
  sampled = {"texts": TEXTS[:3], "sampling": Sampling(1.0)}
  first, learner = served(setup, **sampled, online=STILL)
  again, _ = served(setup, **sampled, online=STILL)
  second, _ = served(setup, **sampled, learner=learner)
  other, _ = served(setup, **sampled, online=STILL, seed=1)
  tokens = [[o.tokens for o in outputs] for outputs in (first, second, other)]
  assert first == again
  assert tokens[0] not in tokens[1:]


def test_a_target_of_another_distribution_is_refused(setup):
  target, *others = setup
  refuses = Generation(refused={"min_length": 5}, files={"min_length": "config.json"})
  target = dataclasses.replace(target, generation=refuses)
  with pytest.raises(ValueError, match="sets min_length=5"):
    served((target, *others))


@pytest.mark.parametrize(
  ("texts", "says"),
  [
    ("a", "requests must be a list of texts, got"),
    (["the", "the old man"], "Request 1 must have at most input_length=2"),
  ],
)
def test_unsuitable_requests_are_refused(setup, texts, says):
  with pytest.raises(ValueError, match=says):
    served(setup, texts, input_length=2)
