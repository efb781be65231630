"""Hierarchies are exact: the distribution of whole outputs of the compiled loop.

test_networks.py has hierarchies on real networks.
"""

import dataclasses
import functools

import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.draft_model import DraftModel
from tests.exactness import cascades
from tests.exactness.cascades import Level
from tests.exactness.driving import assert_all_are, driven_probs
from tests.hash_model import HashModel, sequence_probs

pytestmark = pytest.mark.slow

TARGET, MIDDLE, LOWER, LOWEST = (
  HashModel(seed, vocab_size=3, eos_bias=-1.5) for seed in (3, 4, 5, 6)
)


@dataclasses.dataclass(frozen=True)
class Hierarchy:
  """The models below the target, the lowest first, and their windows."""

  models: tuple[HashModel, ...]
  sizes: tuple[int, ...]
  window: str
  room: int
  rule: str = "token"

  @property
  def drafter(self):
    drafter = DraftModel(self.models[0], self.sizes[0])
    for model, size in zip(self.models[1:], self.sizes[1:], strict=True):
      drafter = Cascade(model, drafter, size, self.window)
    return drafter

  @functools.cache  # noqa: B019, hierarchies are constants of this file
  def paths(self, sampling):
    drafts = [
      Level(model.distribution(sampling), size, self.window == "flush")
      for model, size in zip(self.models, self.sizes, strict=True)
    ]
    target = Level(TARGET.distribution(sampling), self.room, rule=self.rule)
    return cascades.paths((*drafts, target), self.room)

  def __str__(self):
    sizes = "".join(map(str, self.sizes))
    return f"{self.rule}-{sizes}-{self.window}-room{self.room}"


TWO = (LOWER, MIDDLE)
THREE = (LOWEST, LOWER, MIDDLE)
TOP_K = Sampling(1.0, top_k=2)
TOP_P = Sampling(1.0, top_p=0.7)
# Some windows are accepted in full, and further windows follow.
FIXED = Hierarchy(TWO, (1, 2), "fixed", 6)
FLUSHED = Hierarchy(TWO, (1, 2), "flush", 6)
BLOCKS = Hierarchy(TWO, (1, 2), "fixed", 6, rule="block")


def assert_exact(hierarchy, sampling):
  expected = sequence_probs(TARGET, sampling, hierarchy.room)
  outputs = driven_probs(
    hierarchy.paths(sampling),
    TARGET,
    hierarchy.drafter,
    sampling,
    hierarchy.rule,
    hierarchy.room,
  )
  assert_all_are(outputs, expected)


@pytest.mark.parametrize(
  ("hierarchy", "sampling"),
  [
    (Hierarchy(TWO, (2, 3), "flush", 4, rule="block"), Sampling()),
    (BLOCKS, TOP_P),
    (Hierarchy(THREE, (1, 2, 3), "fixed", 4), TOP_K),
    (Hierarchy(THREE, (1, 2, 3), "flush", 5), TOP_K),
  ],
  ids=str,
)
def test_hierarchies_keep_the_target_s_distribution(hierarchy, sampling):
  """`checks` has the hierarchies `FIXED` and `FLUSHED`."""
  assert_exact(hierarchy, sampling)


@pytest.mark.parametrize("hierarchy", [FIXED, FLUSHED, BLOCKS], ids=str)
def test_windows_are_accepted_in_full_and_in_part(hierarchy):
  """The settings would reveal a cache with missing or extra tokens."""
  paths = hierarchy.paths(TOP_K)
  np.testing.assert_allclose(sum(path.probability for path in paths), 1)
  turns = {1 + max(turn for turn, _ in path.cells) for path in paths}
  assert turns >= {2, 3, 4}
