"""Decoding from Python under JAX's strictest promotion of ranks and dtypes."""

import jax
import pytest

import specdec_t5x
from specdec_t5x import Sampling
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.drafters.of_target import LayerSkip, Quantized
from tests.t5x_bridge import tiny

TEXTS = tiny.sentences(3, seed=6)
BY_ROW = CostAware((1.0, 1.3, 1.5), by_row=True)
WAYS = {
  "plain": {"draft": None},
  "draft model": {"gamma": 2},
  "several": {"gamma": 2, "num_candidates": 2, "rule": "traversal"},
  "by row": {"gamma": 2, "policy": BY_ROW, "rule": "block"},
  "sparse": {"drafter": "sparse"},
  "copies": {"draft": "copy"},
  "rounded": {"draft": None, "drafter": Quantized(4, 8, gamma=2)},
  "skipping": {"draft": None, "drafter": LayerSkip(("mlp_0",), 2)},
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
  return tuple(tiny.save_pair(tmp_path_factory.mktemp("promotion")).values())


@pytest.fixture
def strict():
  """Sets promotion like JAX_NUMPY_RANK_PROMOTION and JAX_NUMPY_DTYPE_PROMOTION."""
  names = {"jax_numpy_rank_promotion": "raise", "jax_numpy_dtype_promotion": "strict"}
  before = {name: getattr(jax.config, name) for name in names}
  for name, value in names.items():
    jax.config.update(name, value)
  yield
  for name, value in before.items():
    jax.config.update(name, value)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, top_p=0.9)], ids=str)
@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS)
def test_decoding_works_under_strict_promotion(paths, strict, words, sampling):
  target, draft = map(specdec_t5x.load_model, paths[:2])
  settings = {"max_length": 6, "batch_size": 2, "sampling": sampling}
  words = {"draft": draft, **words, **settings}
  outputs = specdec_t5x.generate(TEXTS, target, vocabulary=paths[2], **words)
  assert len(outputs) == len(TEXTS)
  assert jax.config.jax_numpy_rank_promotion == "raise"
