"""Adaptive draft lengths, chosen per row, keep the target's distribution."""

import re

import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import chain
from specdec_t5x.decoding.policies import CostAware
from tests.exactness.driving import Loop, assert_the_loop_is_exact, loop_paths
from tests.exactness.lengths import turns
from tests.exactness.test_loop import DRAFT, TARGET
from tests.hash_model import HashModel

# The prior is weak: the result of one draft changes the length of the next draft.
LEARNING = CostAware((1.0, 1.18, 1.36, 1.49), 0.5, 1.0, decay=0.9, by_row=True)
# Drafts two tokens, or one token after a failed draft.
SHORT = CostAware((1.0, 1.01, 1.3), 0.8, prior_weight=1.0, by_row=True)
# Takes two plain turns after a failed draft, then drafts again; drafts three tokens
# after a success.
TURNS = CostAware((1.0, 1.35, 1.55, 1.8), 0.5, prior_weight=1.0, decay=0.5)

# Outputs without end; the only path mixes drafts and plain turns.
GREEDY_MODELS = tuple(HashModel(seed, 4, eos_bias=-30.0) for seed in (1, 2))


@pytest.mark.parametrize(
  ("rule", "gamma", "room", "policy", "sampling"),
  [
    ("block", 2, 4, SHORT, Sampling(0.6)),
    ("block", 3, 5, LEARNING, Sampling(1.0, top_p=0.7)),
    ("token", 3, 4, LEARNING, Sampling(1.0, top_k=2)),
  ],
  ids=str,
)
def test_the_loop_keeps_the_target_s_distribution(rule, gamma, room, policy, sampling):
  """`checks` has a loop with plain turns, under the token rule without truncation."""
  setting = Loop(TARGET, DRAFT, rule, chain(gamma), room, policy=policy)
  assert_the_loop_is_exact(setting, sampling)
  _, paths = loop_paths(setting, sampling)
  lengths = {tuple(turns(path, gamma)[:2]) for path in paths if 1 not in path.result}
  assert len(lengths) > 1, "all drafts have one length"


@pytest.mark.parametrize(
  ("models", "rule", "sampling", "room"),
  [
    ((TARGET, DRAFT), "block", Sampling(1.0, top_p=0.7), 7),
    (GREEDY_MODELS, "token", GREEDY, 24),
  ],
  ids=["top-p", "greedy"],
)
def test_plain_turns_between_drafts_keep_the_distribution(models, rule, sampling, room):
  """Drafts fail, plain turns follow, and the draft then reads the missed tokens."""
  setting = (*models, rule, chain(3), room, "independent", TURNS)
  assert_the_loop_is_exact(setting, sampling)
  _, paths = loop_paths(setting, sampling)
  assert any(changes(turns(path, 3)) for path in paths)


def changes(lengths):
  """Returns whether a draft, several plain turns and a draft follow each other."""
  text = "".join(map(str, lengths))
  return re.search(r"[123]00+[123]", text) and set(text) >= set("012")
