import jax.numpy as jnp
import numpy as np
import pytest
import seqio

from tests import networks


@pytest.fixture(scope="session")
def vocabulary(vocabulary_path):
  return seqio.SentencePieceVocabulary(vocabulary_path, extra_ids=0)


@pytest.fixture(scope="session")
def batch():
  """Returns five inputs of several lengths with targets of twelve tokens."""
  rng = np.random.default_rng(0)
  inputs = rng.integers(3, 30, size=(5, 9))
  inputs[1, 4:] = 0
  inputs[2, 1:] = 0
  targets = rng.integers(3, 30, size=(5, 12))
  batch = networks.forced(jnp.asarray(inputs, jnp.int32), jnp.asarray(targets))
  return batch | {"decoder_loss_weights": jnp.ones((5, 12))}
