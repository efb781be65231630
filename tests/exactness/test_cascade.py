"""Hierarchies are exact: the distribution of whole outputs of the compiled loop."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.functional import network_for, start_decoding
from tests import networks
from tests.exactness import cascades
from tests.exactness import test_layer_skip as of_target
from tests.exactness.cascades import Level
from tests.exactness.distributions import adjusted
from tests.exactness.driving import (
  assert_all_are,
  assert_the_decoder_is_exact,
  driven_probs,
  logits_by_output,
)
from tests.exactness.enumeration import Setting
from tests.hash_model import HashModel, sequence_probs
from tests.t5x_bridge import tiny

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
  inner: str = "token"

  @property
  def drafter(self):
    drafter = DraftModel(self.models[0], self.sizes[0])
    for model, size in zip(self.models[1:], self.sizes[1:], strict=True):
      drafter = Cascade(model, drafter, size, self.window, RULES[self.inner])
    return drafter

  @functools.cache  # noqa: B019, hierarchies are constants of this file
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


TWO = (LOWER, MIDDLE)
THREE = (LOWEST, LOWER, MIDDLE)
TOP_K = Sampling(1.0, top_k=2)
TOP_P = Sampling(1.0, top_p=0.7)
# Some windows are accepted in full, and further windows follow.
FIXED = Hierarchy(TWO, (1, 2), "fixed", 6)
FLUSHED = Hierarchy(TWO, (1, 2), "flush", 6)
BLOCKS = Hierarchy(TWO, (1, 2), "fixed", 6, rule="block", inner="block")


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
    (Hierarchy(THREE, (1, 2, 3), "flush", 5, inner="block"), TOP_K),
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


# ---- A reduced target (rounded, or without sublayers) is the middle network. ----

INPUTS = of_target.INPUTS
ROOM = of_target.ROOM
DRAFT = network_for(tiny.config(1, 8, vocab_size=of_target.SIZE))


@functools.cache
def draft_params():
  return networks.sharp(DRAFT, seed=4)


@functools.cache
def draft_logits():
  @jax.jit
  def read(tokens):
    extend, cache = start_decoding(DRAFT, draft_params(), INPUTS, ROOM, len(tokens))
    return extend(cache, tokens)[0]

  return logits_by_output(read, of_target.SIZE, ROOM)


def of_target_paths(drafter, sampling):
  """Returns the target's setting and all paths of whole decodes, by the oracle."""
  target, middle = of_target.distributions(drafter.network, sampling)
  lower = functools.cache(lambda output: adjusted(draft_logits()[output], sampling))
  levels = (
    Level(lower, drafter.drafter.gamma),
    Level(middle, drafter.gamma, drafter.window == "flush", "token", begins=True),
    Level(target, ROOM),
  )
  return Setting(target, target, None, (), ROOM), cascades.paths(levels, ROOM)


@pytest.mark.parametrize(
  ("name", "window"), [("skipping", "fixed"), ("8 bits", "flush")]
)
def test_a_reduced_target_may_be_the_middle_network(name, window):
  middle = of_target.DRAFTERS[name]
  drafter = Cascade(middle, DraftModel(DRAFT, 1), 3, window)
  decoder = Decoder(of_target.TARGET, drafter)
  params = {**of_target.all_params(middle), "draft": draft_params()}
  setting, paths = of_target_paths(drafter, of_target.TOP_K)
  assert_the_decoder_is_exact(
    decoder, params, INPUTS, of_target.TOP_K, [setting], [paths]
  )
