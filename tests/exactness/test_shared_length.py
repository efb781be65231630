"""Two rows share a draft length, the longest that pays for both rows.

The joint distribution of both outputs is the product of the targets' distributions.
"""

import functools

import jax
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.contracts import decisions
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.drafters.draft_model import DraftModel
from tests.exactness import lengths
from tests.exactness.driving import assert_all_are, drive, probs_along
from tests.exactness.enumeration import Setting, explore, outputs_of
from tests.exactness.oracles import JUDGES
from tests.exactness.planting import jit
from tests.hash_model import EasyAndHard, HashModel

# Drafts two tokens, none after an immediate rejection, and then two again.
RESTING = CostAware((1.0, 1.75, 2.3), 0.8, prior_weight=1.0, decay=0.1)
# Drafts three tokens, and fewer or none after rejections.
SHRINKING = CostAware((1.0, 1.6, 2.05, 2.45), 0.7, prior_weight=1.0, decay=0.4)
TOP_K = Sampling(1.0, top_k=2)
# (vocabulary size, policy, gamma, room).
SHORT = (3, RESTING, 2, 5)
LONG = (2, SHRINKING, 3, 5)


@functools.cache
def paths_of(size, rule="token", sampling=TOP_K):
  """Returns the draft, the settings, and all paths of whole decodes of two rows."""
  vocab_size, policy, gamma, room = size
  target = HashModel(3, vocab_size, eos_bias=-1.0)
  draft = EasyAndHard(4, vocab_size, eos_bias=-1.0, target=target)
  p, q = (model.distribution(sampling) for model in (target, draft))
  judge = JUDGES["greedy" if sampling.greedy else rule]
  tree = tuple(range(gamma))
  settings = [Setting(p, each, judge, tree, room) for each in (p, q)]

  def run(world):
    return lengths.decode(world, settings, policy)

  return draft, settings, list(explore(run))


def assert_both_rows_are_exact(size, rule="token", sampling=TOP_K):
  """Checks both rows along every path, within float32's margin of 1e-6."""
  draft, settings, paths = paths_of(size, rule, sampling)
  _, policy, gamma, room = size
  drafter = DraftModel(draft, gamma)

  def both(uniforms):
    return drive(uniforms, draft.target, drafter, sampling, rule, policy)

  run = jit(jax.vmap(both))
  count = decisions(drafter)
  found = probs_along(paths, run, count, room, rows=(2,))
  one, other = map(outputs_of, settings)
  assert_all_are(found, {(a, b): one[a] * other[b] for a in one for b in other})


def test_rows_that_share_a_length_are_exact_jointly():
  """`checks` has a shorter draft under the token rule."""
  assert_both_rows_are_exact(LONG, "block", Sampling(0.6))


@pytest.mark.parametrize(
  ("size", "expected"), [(SHORT, {0, 2}), (LONG, {0, 1, 2, 3})], ids=["short", "long"]
)
def test_the_shared_length_changes(size, expected, monkeypatch):
  found = set()
  best_length = lengths.best_length

  def watched(*known):
    return found.add(best_length(*known)) or best_length(*known)

  monkeypatch.setattr(lengths, "best_length", watched)
  paths_of.__wrapped__(size)
  assert found == expected
