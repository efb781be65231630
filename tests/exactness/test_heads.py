"""Exactness of heads: probs that are functions of the target's feature, and a path."""

import pytest

from specdec_t5x.contrib.heads import HeadDraft
from specdec_t5x.contrib.pruned import Pruned
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.network.heads import HeadsConfig
from specdec_t5x.policies import CostAware
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

TARGET = HashModel(3, vocab_size=3)
# Their distributions do, or do not, depend on the tokens between feature and head.
PATH = HashHeads(4, 3, HeadsConfig("hydra", 2, 1), reads_path=True)
APART = HashHeads(4, 3, HeadsConfig("medusa", 2, 1), reads_path=False)
# Features that do not, and a bias of the token before: a chain.
BIASED = HashHeads(
  4, 3, HeadsConfig("medusa", 2, 1, rank=1, vocab_size=3), reads_path=False
)

SIBLINGS = Tree((0, 0, 1))
# Rules, trees and siblings, each with heads of some kind; `checks` has others.
SETTINGS = [
  (TARGET, PATH, "block", chain(2), 4),
  (TARGET, PATH, "kseq", delayed(0, 2, 1), 4),
  (TARGET, PATH, "recursive", SIBLINGS, 4, "likeliest"),
  (TARGET, APART, "traversal", SIBLINGS, 4, "likeliest"),
  (TARGET, BIASED, "traversal", Tree((0, 0, 2)), 4, "distinct"),
]


def name(part):
  if not isinstance(part, tuple):
    return str(part)
  config = part[1].config
  return f"{config.kind}-rank{config.rank}-{name_of(part)}"


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


def test_one_head_s_pruned_tree_is_its_likeliest_tokens():
  one = HashHeads(4, 3, HeadsConfig("medusa", 1, 1), reads_path=False)
  setting = (TARGET, one, "recursive", Tree((0, 0)), 4, "likeliest")
  decoding, paths = loop_paths(setting, Sampling())
  drafter = HeadDraft(one, Pruned(2, width=3, ranks=3))
  found = driven_probs(paths, TARGET, drafter, Sampling(), "recursive", 4)
  assert_all_are(found, outputs_of(decoding))


# ---- A chain is as long as its policy says. ----

# Two tokens; one after a failed draft.
SHORTER = CostAware((1.0, 1.01, 1.3), 0.8, prior_weight=1.0)


@pytest.mark.parametrize(
  "setting",
  [
    (TARGET, heads, rule, chain(2), 5, "independent", SHORTER)
    for heads, rule in [(BIASED, "token"), (PATH, "block"), (APART, "token")]
  ],
  ids=name,
)
def test_chains_that_stop_earlier_keep_the_distribution(setting):
  assert_the_loop_is_exact(setting, Sampling())
  _, paths = loop_paths(setting, Sampling())
  assert {1, 2} <= {length for path in paths for length in turns(path, 2)}


# A weak prior: one failed draft, and the target goes on by itself.
PAYING = CostAware((1.0, 1.4), 0.5, prior_weight=1.0)
BY_LENGTH = CostAware((1.0, 1.3, 1.4), 0.5, prior_weight=1.0)


@pytest.mark.parametrize(
  ("heads", "rule", "tree", "policy"),
  [
    (PATH, "block", chain(2), BY_LENGTH),
    (APART, "recursive", Tree((0, 0, 1)), PAYING),
  ],
  ids=["chain", "tree"],
)
def test_drafts_that_no_longer_pay_keep_the_distribution(heads, rule, tree, policy):
  setting = (TARGET, heads, rule, tree, 5, "distinct", policy)
  assert_the_loop_is_exact(setting, Sampling())
  _, paths = loop_paths(setting, Sampling())
  drafts = {tuple(turns(path, tree.size)) for path in paths}
  # Heads rest before the first call; then some drafts pay once, and no more.
  assert any(len(found) > 3 and found[1] and not found[-1] for found in drafts)
