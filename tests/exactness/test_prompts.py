"""Outputs that continue a prompt are exact, along every path of whole decodes."""

import dataclasses

import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.decoding.policies import CostAware
from tests.exactness.driving import Loop, assert_the_loop_is_exact, difference
from tests.exactness.test_loop import name_of
from tests.hash_model import HashModel, sequence_probs

# An EOS token in a prompt, even in the last place, ends nothing.
PROMPT = (2, 2, 1)
TARGET, DRAFT = (
  HashModel(seed, vocab_size=3, eos_bias=-0.5, prompt=PROMPT) for seed in (3, 4)
)
PAYING = CostAware((1.0, 1.7, 2.4), by_row=True)


@pytest.mark.parametrize(
  ("setting", "sampling"),
  [
    (Loop(TARGET, DRAFT, "traversal", delayed(1, 2, 2), 3, "distinct"), Sampling()),
    (Loop(TARGET, DRAFT, "block", chain(2), 4, policy=PAYING), Sampling(0.7)),
  ],
  ids=name_of,
)
def test_the_loop_keeps_the_target_s_distribution(setting, sampling):
  assert_the_loop_is_exact(setting, sampling)


def test_the_prompt_matters():
  plain = dataclasses.replace(TARGET, prompt=())
  distributions = (sequence_probs(model, Sampling(), 4) for model in (TARGET, plain))
  assert difference(*distributions) > 0.05
