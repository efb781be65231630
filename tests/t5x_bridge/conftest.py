import pytest
import seqio

from tests.t5x_bridge import tiny


@pytest.fixture(scope="session")
def vocabulary_path(tmp_path_factory):
  return tiny.train_vocabulary(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def vocabulary(vocabulary_path):
  return seqio.SentencePieceVocabulary(vocabulary_path, extra_ids=0)
