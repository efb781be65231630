"""The compiled loop is exact, driven along every path of whole decodes.

`checks` has further loops. test_mutations.py runs them with and without planted faults.
"""

import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import chain, delayed
from tests.exactness.driving import assert_the_loop_is_exact, loop_paths
from tests.exactness.enumeration import target_probs
from tests.hash_model import HashModel

TARGET, DRAFT = (HashModel(seed, vocab_size=4, eos_bias=-0.5) for seed in (1, 2))
SMALL_TARGET, SMALL_DRAFT = (HashModel(seed, vocab_size=3) for seed in (3, 4))

MODELS = SMALL_TARGET, SMALL_DRAFT

SETTING = (TARGET, DRAFT, "token", chain(2), 4)


def name_of(part):
  """Returns the name of a setting or parameter in a test's id."""
  if not isinstance(part, tuple):
    return str(part)
  _, _, rule, tree, room, *rest = part
  parents = "".join(map(str, tree.parents))
  return "-".join([rule, parents, f"room{room}", *map(str, rest)])


@pytest.mark.parametrize(
  ("setting", "sampling"),
  [
    (SETTING, Sampling()),
    ((TARGET, DRAFT, "block", chain(2), 4), Sampling(0.6)),
    # Seven tokens never fit.
    ((*MODELS, "token", chain(7), 4), Sampling()),
    ((*MODELS, "kseq", delayed(0, 2, 2), 4), GREEDY),
    (
      (SMALL_TARGET, SMALL_DRAFT, "recursive", delayed(0, 2, 2), 4),
      Sampling(1.0, top_p=0.7),
    ),
  ],
  ids=name_of,
)
def test_the_loop_keeps_the_target_s_distribution(setting, sampling):
  assert_the_loop_is_exact(setting, sampling)


# End tokens besides 1; 0 is a regular token here.
ENDS = ((1, 3), (3, 0, 1))


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize(
  "setting",
  [
    SETTING,
    (TARGET, DRAFT, "block", chain(2), 3),
    (SMALL_TARGET, SMALL_DRAFT, "recursive", delayed(0, 2, 2), 3),
  ],
  ids=name_of,
)
def test_the_first_of_several_end_tokens_ends_an_output(setting, ends):
  vocab_size = setting[0].vocab_size
  ends = tuple(token for token in ends if token < vocab_size)
  setting = (*setting, "independent", None, ends)
  assert_the_loop_is_exact(setting, Sampling())
  _, paths = loop_paths(setting, Sampling())
  last_tokens = {path.result[-1] for path in paths}
  assert last_tokens == set(range(vocab_size))


def test_the_setting_has_several_iterations_rejections_and_ends():
  setting, paths = loop_paths(SETTING, Sampling())
  outputs = [path.result for path in paths]
  assert max(at[0] for path in paths for at in path.cells) == 3
  assert any(1 in output and len(output) < 4 for output in outputs)
  assert any(1 not in output for output in outputs)
  assert len(set(outputs)) == len(target_probs(setting))
  assert len(outputs) > 5 * len(set(outputs))
  np.testing.assert_allclose(sum(path.probability for path in paths), 1)
