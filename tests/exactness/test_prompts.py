"""The probs of outputs that go on from a prompt, along every path of whole decodes."""

import dataclasses

import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.policies import Confidence, CostAware
from tests.exactness.driving import difference, loop_paths
from tests.exactness.enumeration import target_probs
from tests.exactness.test_loop import assert_the_loop_is_exact
from tests.hash_model import HashModel

# An end of sequence in a prompt, even at its end, ends nothing.
PROMPT = (2, 2, 1)
TARGET, DRAFT = (
  HashModel(seed, vocab_size=3, eos_bias=-0.5, prompt=PROMPT) for seed in (3, 4)
)
POLICIES = (Confidence(0.6), CostAware((1.0, 1.7, 2.4), by_row=True))


@pytest.mark.parametrize(
  ("sampling", "rule", "tree", "room", "siblings", "policy"),
  [
    (Sampling(), "token", chain(3), 4, "independent", None),
    (Sampling(0.7), "block", chain(2), 4, "independent", None),
    (Sampling(), "traversal", delayed(1, 2, 2), 3, "distinct", None),
    (GREEDY, "token", chain(2), 4, "independent", POLICIES[0]),
    (Sampling(), "token", chain(2), 4, "independent", POLICIES[1]),
  ],
)
def test_the_loop_keeps_the_target_s_distribution(
  sampling, rule, tree, room, siblings, policy
):
  setting = (TARGET, DRAFT, rule, tree, room, siblings, policy)
  assert_the_loop_is_exact(setting, sampling)


def test_the_prompt_matters():
  plain = [dataclasses.replace(model, prompt=()) for model in (TARGET, DRAFT)]
  distributions = [
    target_probs(loop_paths(*models, Sampling(), "token", chain(3), 4)[0])
    for models in ((TARGET, DRAFT), plain)
  ]
  assert difference(*distributions) > 0.05
