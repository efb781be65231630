"""Drafts of a length that each row decides: the distribution of the compiled loop, as
before."""

import re

import jax
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.policies import Confidence, CostAware, ExitThreshold
from tests.decoding.test_generate import assert_follows
from tests.exactness import lengths
from tests.exactness.driving import Loop, assert_the_loop_is_exact, loop_paths
from tests.exactness.lengths import turns
from tests.exactness.planting import jit
from tests.exactness.test_loop import DRAFT, SMALL_DRAFT, SMALL_TARGET, TARGET, name_of
from tests.hash_model import EasyAndHard, HashModel, sequence_probs, speculation

SURE = Confidence(0.35)
# A weak prior: what one draft came to changes the length of the next.
LEARNING = CostAware((1.0, 1.18, 1.36, 1.49), 0.5, 1.0, decay=0.9, by_row=True)
# Two plain turns after a failed draft, then drafts again; three tokens after a success.
TURNS = CostAware((1.0, 1.35, 1.55, 1.8), 0.5, prior_weight=1.0, decay=0.5)
# A threshold that every draft moves by a good deal.
EXIT = ExitThreshold(0.45, 0.6, 0.4, 0.5, 0.5)

# target, draft, rule, the longest draft, room, siblings (none), policy.
SETTINGS = [
  (*models, rule, chain(gamma), room, "independent", policy)
  for models, rule, gamma, room, policy in [
    ((TARGET, DRAFT), "token", 2, 4, SURE),
    ((SMALL_TARGET, SMALL_DRAFT), "token", 7, 4, SURE),
    ((SMALL_TARGET, SMALL_DRAFT), "block", 3, 5, SURE),
    ((TARGET, TARGET), "block", 3, 5, SURE),
    ((SMALL_TARGET, SMALL_DRAFT), "token", 3, 6, LEARNING),
    ((SMALL_TARGET, SMALL_DRAFT), "block", 3, 5, LEARNING),
    ((SMALL_TARGET, SMALL_DRAFT), "token", 3, 6, TURNS),
    ((SMALL_TARGET, SMALL_DRAFT), "block", 3, 6, TURNS),
    ((SMALL_TARGET, SMALL_DRAFT), "token", 3, 6, EXIT),
    ((TARGET, DRAFT), "block", 2, 4, EXIT),
  ]
]


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_the_loop_keeps_the_target_s_distribution(setting):
  assert_the_loop_is_exact(setting, Sampling())


@pytest.mark.parametrize(
  ("policy", "sampling"),
  [
    (SURE, Sampling(0.6)),
    (SURE, GREEDY),
    (LEARNING, Sampling(1.0, top_p=0.7)),
    (TURNS, GREEDY),
    (EXIT, Sampling(0.6)),
    (EXIT, GREEDY),
  ],
  ids=str,
)
def test_it_keeps_it_however_it_is_sampled(policy, sampling):
  setting = Loop(TARGET, DRAFT, "token", chain(3), 4, policy=policy)
  assert_the_loop_is_exact(setting, sampling)


@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
def test_the_settings_have_drafts_of_several_lengths(setting):
  """Else they would be settings of `test_loop`."""
  _, paths = loop_paths(setting, Sampling())
  np.testing.assert_allclose(sum(path.probability for path in paths), 1)
  gamma = setting[3].size
  found = {tuple(turns(path, gamma)[:2]) for path in paths if 1 not in path.result}
  assert len(found) > 1


# Endless outputs, whose only path has turns of all kinds.
GREEDY_MODELS = tuple(HashModel(seed, 4, eos_bias=-30.0) for seed in (1, 2))


@pytest.mark.parametrize(
  ("models", "sampling", "room"),
  [
    ((SMALL_TARGET, SMALL_DRAFT), Sampling(), 6),
    ((TARGET, DRAFT), Sampling(1.0, top_p=0.7), 7),
    (GREEDY_MODELS, GREEDY, 24),
  ],
  ids=["T=1", "top-p", "greedy"],
)
def test_turns_change_on_a_path_and_the_distribution_is_kept(models, sampling, room):
  """Drafts fail, plain turns follow, and the draft reads all that it has missed."""
  setting = (*models, "token", chain(3), room, "independent", TURNS)
  assert_the_loop_is_exact(setting, sampling)
  _, paths = loop_paths(setting, sampling)
  assert any(changes(turns(path, 3)) for path in paths)


def changes(found):
  """Whether a draft follows plain turns in a row that follow a draft."""
  text = "".join(map(str, found))
  return re.search(r"[123]00+[123]", text) and set(text) >= set("012")


def test_what_was_accepted_changes_the_next_length():
  histories = [], [(0, 1)], [(1, 2)], [(2, 2)]
  best = [lengths.best_length(LEARNING, range(4), h) for h in histories]
  assert best == [2, 1, 2, 3]


# ---- A batch, whose rows share the length of their drafts. ----


def two_rows(batches=20_000, room=5):
  """Outputs of many batches of an easy row and a hard one, and their counts."""
  drafter = DraftModel(EasyAndHard(4, vocab_size=3, target=SMALL_TARGET), 3)

  def decode(key):
    of_setting = (SMALL_TARGET, drafter, RULES["token"], Sampling(), row_keys(key, 2))
    decoded = generate(*speculation(*of_setting, room, policy=TURNS))
    info = decoded.statistics
    return decoded.tokens, info.accepted, info.acceptance_positions

  keys = jax.random.split(jax.random.key(0), batches)
  return map(np.asarray, jit(jax.vmap(decode))(keys))


def assert_rows_keep_their_probs(outputs, accepted, tried):
  """By chi-squared at level 0.001; the draws are the same in each run."""
  distribution = sequence_probs(SMALL_TARGET, Sampling(), outputs.shape[-1])
  for row in (0, 1):
    assert_follows(outputs[:, row], distribution)
  np.testing.assert_array_equal(accepted[:, 0], tried[:, 0])
  assert (accepted[:, 1] < tried[:, 1]).mean() > 0.3


def test_rows_that_share_a_length_keep_their_distributions():
  assert_rows_keep_their_probs(*two_rows())
