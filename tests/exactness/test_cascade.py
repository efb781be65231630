"""Exactness of hierarchies: the probs of whole outputs through the compiled loop."""

import dataclasses

import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.draft_model import DraftModel
from tests.exactness import cascades
from tests.exactness.cascades import Level
from tests.exactness.driving import assert_all_are, driven_probs, padded
from tests.exactness.enumeration import Setting, target_probs
from tests.hash_model import HashModel

TARGET, MIDDLE, LOWER, LOWEST = (
  HashModel(seed, vocab_size=3, eos_bias=-1.5) for seed in (3, 4, 5, 6)
)


@dataclasses.dataclass(frozen=True)
class Hierarchy:
  """Models below the target, the lowest first, and their windows."""

  models: tuple[HashModel, ...]
  sizes: tuple[int, ...]
  window: str
  room: int
  rule: str = "token"
  inner: str = "token"

  @property
  def drafter(self):
    drafter = DraftModel(self.models[0], self.sizes[0])
    for model, size in zip(self.models[1:], self.sizes[1:], strict=True):
      drafter = Cascade(model, drafter, size, self.window, RULES[self.inner])
    return drafter

  def paths(self, sampling):
    drafts = [
      Level(model.distribution(sampling), size, self.window == "flush", self.inner)
      for model, size in zip(self.models, self.sizes, strict=True)
    ]
    target = Level(TARGET.distribution(sampling), self.room, rule=self.rule)
    return cascades.paths((*drafts, target), self.room)

  def __str__(self):
    sizes = "".join(map(str, self.sizes))
    return f"{self.inner}-{self.rule}-{sizes}-{self.window}-room{self.room}"


TWO, THREE = (LOWER, MIDDLE), (LOWEST, LOWER, MIDDLE)
WAYS = [
  Hierarchy(TWO, (1, 2), "fixed", 5),
  Hierarchy(TWO, (2, 3), "fixed", 4),
  Hierarchy(TWO, (2, 3), "flush", 4),
  Hierarchy(TWO, (2, 3), "flush", 4, rule="block"),
  Hierarchy(TWO, (1, 2), "fixed", 4, rule="block", inner="block"),
  Hierarchy(TWO, (2, 3), "flush", 4, inner="block"),
  Hierarchy(THREE, (1, 2, 3), "fixed", 4),
  Hierarchy(THREE, (1, 2, 3), "flush", 4),
]
# Longer outputs, of fewer tokens: windows accepted whole, and others after them.
LONG = [
  Hierarchy(TWO, (1, 2), "fixed", 6),
  Hierarchy(TWO, (2, 3), "flush", 7),
  Hierarchy(TWO, (1, 2), "fixed", 6, rule="block", inner="block"),
  Hierarchy(THREE, (1, 2, 3), "fixed", 5),
  Hierarchy(THREE, (1, 2, 3), "flush", 6),
]
SAMPLINGS = [Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.7), GREEDY]


def assert_exact(hierarchy, sampling):
  distribution = TARGET.distribution(sampling)
  expected = padded(
    target_probs(Setting(distribution, distribution, None, (), hierarchy.room)),
    hierarchy.room,
  )
  of_loop = TARGET, hierarchy.drafter, sampling, hierarchy.rule, hierarchy.room
  assert_all_are(driven_probs(hierarchy.paths(sampling), *of_loop), expected)


@pytest.mark.parametrize("hierarchy", WAYS, ids=str)
def test_hierarchies_keep_the_target_s_distribution(hierarchy):
  assert_exact(hierarchy, Sampling())


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("hierarchy", LONG, ids=str)
def test_they_keep_it_however_it_is_sampled(hierarchy, sampling):
  assert_exact(hierarchy, sampling)


@pytest.mark.parametrize("hierarchy", LONG, ids=str)
def test_the_settings_have_windows_accepted_whole_and_in_part(hierarchy):
  """Else caches that lack tokens, or hold too many, would not show."""
  paths = hierarchy.paths(SAMPLINGS[0])
  np.testing.assert_allclose(sum(path.probability for path in paths), 1)
  turns = {1 + max(turn for turn, _ in path.cells) for path in paths}
  assert turns >= {2, 3, 4}
