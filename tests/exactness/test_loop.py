"""The probs of the compiled loop, by driving it along every path of whole decodes."""

import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import chain, delayed
from tests.exactness.driving import assert_the_loop_is_exact, loop_paths
from tests.exactness.enumeration import target_probs
from tests.hash_model import HashModel

TARGET, DRAFT = (HashModel(seed, vocab_size=4, eos_bias=-0.5) for seed in (1, 2))
SMALL_TARGET, SMALL_DRAFT = (HashModel(seed, vocab_size=3) for seed in (3, 4))

# For `checks`. Four levels of uniforms a token; where the end of sequence is likely,
# there are ends.
WIDE_TARGET, WIDE_DRAFT = (
  HashModel(seed, vocab_size=600, eos_bias=4.5) for seed in (5, 6)
)
FEW = Sampling(1.0, top_k=3)

# target, draft, rule, tree, room. Seven tokens never have the room.
SETTINGS = [
  (TARGET, DRAFT, "token", chain(2), 4),
  (TARGET, TARGET, "token", chain(3), 5),
  (SMALL_TARGET, SMALL_DRAFT, "token", chain(7), 4),
  (TARGET, DRAFT, "block", chain(2), 4),
  (SMALL_TARGET, SMALL_DRAFT, "block", chain(3), 5),
  (SMALL_TARGET, SMALL_DRAFT, "kseq", delayed(0, 2, 2), 4),
  (SMALL_TARGET, SMALL_DRAFT, "recursive", delayed(0, 2, 2), 4),
]


def name_of(part):
  """A setting, or another parameter, in a test's name."""
  if not isinstance(part, tuple):
    return str(part)
  _, _, rule, tree, room, *rest = part
  parents = "".join(map(str, tree.parents))
  return "-".join([rule, parents, f"room{room}", *map(str, rest)])


@pytest.mark.parametrize(
  ("setting", "sampling"),
  [
    *((setting, Sampling()) for setting in SETTINGS),
    (SETTINGS[0], Sampling(0.6)),
    (SETTINGS[0], Sampling(1.0, top_p=0.7)),
    (SETTINGS[0], GREEDY),
    (SETTINGS[5], Sampling(1.0, top_k=2)),
    (SETTINGS[5], Sampling(1.0, top_p=0.7)),
    (SETTINGS[5], GREEDY),
  ],
  ids=name_of,
)
def test_the_loop_keeps_the_target_s_distribution(setting, sampling):
  assert_the_loop_is_exact(setting, sampling)


def test_the_settings_have_several_iterations_rejections_and_ends():
  setting, paths = loop_paths(SETTINGS[0], Sampling())
  outputs = [path.result for path in paths]
  assert max(at[0] for path in paths for at in path.cells) == 3
  assert any(1 in output and len(output) < 4 for output in outputs)
  assert any(1 not in output for output in outputs)
  assert len(set(outputs)) == len(target_probs(setting))
  assert len(outputs) > 5 * len(set(outputs))
  np.testing.assert_allclose(sum(path.probability for path in paths), 1)
