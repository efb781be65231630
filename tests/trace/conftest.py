"""A tiny random pair with traces of a few decodes."""

import pytest

from specdec_t5x import Sampling
from specdec_t5x.trace import recording
from tests.t5x_bridge import tiny

TEXT = tiny.sentences(1, seed=4)[0]
SETTINGS = {"gamma": 3, "max_length": 10}
SAMPLED = {"sampling": Sampling(1.0), "seed": 2}


@pytest.fixture(scope="session")
def models():
  return tiny.pair()


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
  return tiny.train_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def greedy(models, vocabulary):
  """Returns the traces of an input at temperature 0."""
  return recording.record([TEXT], *models, vocabulary, **SETTINGS)


@pytest.fixture(scope="session")
def sampled(models, vocabulary):
  """Returns the traces of six samples of an input."""
  return recording.record([TEXT] * 6, *models, vocabulary, **SETTINGS, **SAMPLED)
