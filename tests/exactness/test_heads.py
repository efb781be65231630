"""Heads are exact: distributions that depend on the target's feature."""

import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.network.heads import HeadsConfig
from tests.exactness.driving import (
  assert_all_are,
  assert_the_loop_is_exact,
  driven_probs,
  loop_paths,
  outputs_of,
)
from tests.exactness.lengths import turns
from tests.exactness.test_loop import name_of
from tests.hash_model import HashHeads, HashModel

pytestmark = pytest.mark.slow

TARGET = HashModel(3, vocab_size=3)
# The heads' distributions do not depend on the drafted tokens.
APART = HashHeads(7, 3, HeadsConfig("medusa", 2, 1))

SIBLINGS = Tree((0, 0, 1))
# Rules, trees and siblings; `checks` has further settings.
SETTINGS = [
  (TARGET, APART, "block", chain(2), 4),
  (TARGET, APART, "kseq", delayed(0, 2, 1), 4),
  (TARGET, APART, "recursive", SIBLINGS, 4, "likeliest"),
  (TARGET, APART, "traversal", SIBLINGS, 4, "likeliest"),
  (TARGET, APART, "traversal", Tree((0, 0, 2)), 4, "distinct"),
]


def name(part):
  if not isinstance(part, tuple):
    return str(part)
  return name_of(part)


@pytest.mark.parametrize(
  ("setting", "sampling"),
  [
    (SETTINGS[0], Sampling(0.7, top_k=2)),
    *((setting, Sampling()) for setting in SETTINGS[1:]),
  ],
  ids=name,
)
def test_the_loop_keeps_the_target_s_distribution(setting, sampling):
  assert_the_loop_is_exact(setting, sampling)


def test_drafts_are_accepted_and_rejected():
  _, paths = loop_paths(SETTINGS[0], Sampling())
  iterations = {1 + max(at[0] for at in path.cells) for path in paths}
  assert iterations == {1, 2, 3, 4}


def test_the_pruned_tree_of_one_head_has_the_likeliest_tokens():
  one = HashHeads(4, 3, HeadsConfig("medusa", 1, 1))
  setting = (TARGET, one, "recursive", Tree((0, 0)), 4, "likeliest")
  decoding, paths = loop_paths(setting, Sampling())
  drafter = HeadDraft(one, Pruned(2, width=3, ranks=3))
  outputs = driven_probs(paths, TARGET, drafter, Sampling(), "recursive", 4)
  assert_all_are(outputs, outputs_of(decoding))


# ---- A policy sets the length of a chain. ----

# Drafts two tokens, or one token after a failed draft.
SHORTER = CostAware((1.0, 1.01, 1.3), 0.8, prior_weight=1.0)


@pytest.mark.parametrize(
  "setting",
  [
    (TARGET, APART, rule, chain(2), 5, "independent", SHORTER)
    for rule in ("token", "block")
  ],
  ids=name,
)
def test_chains_of_varying_length_keep_the_distribution(setting):
  assert_the_loop_is_exact(setting, Sampling())
  _, paths = loop_paths(setting, Sampling())
  assert {1, 2} <= {length for path in paths for length in turns(path, 2)}


# The prior is weak: after one failed draft, the target continues without drafts.
PAYING = CostAware((1.0, 1.4), 0.5, prior_weight=1.0)
BY_LENGTH = CostAware((1.0, 1.3, 1.4), 0.5, prior_weight=1.0)


@pytest.mark.parametrize(
  ("rule", "tree", "policy"),
  [
    ("block", chain(2), BY_LENGTH),
    ("recursive", Tree((0, 0, 1)), PAYING),
  ],
  ids=["chain", "tree"],
)
def test_drafts_that_stop_paying_keep_the_distribution(rule, tree, policy):
  setting = (TARGET, APART, rule, tree, 5, "distinct", policy)
  assert_the_loop_is_exact(setting, Sampling())
  _, paths = loop_paths(setting, Sampling())
  drafts = {tuple(turns(path, tree.size)) for path in paths}
  # Heads rest before the first call. Some drafts then pay once, and not again.
  assert any(len(lengths) > 3 and lengths[1] and not lengths[-1] for lengths in drafts)
