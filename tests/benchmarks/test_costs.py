"""Costs computed from the times of the parts, and the timing of every part."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks import costs, study
from benchmarks.sizes import random_params
from specdec_t5x.analysis import theory
from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.network.transformer import Transformer
from tests.benchmarks.conftest import TARGET, steady
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow

# An iteration drafts 4 tokens in 2 s and scores the block in 10 s. A token takes 5 s.
COSTS = costs.Costs(
  gamma=4,
  plain=5.0,
  plain_start=20.0,
  iteration=12.0,
  start=23.0,
  draft=2.0,
  token=5.0,
  encoder=19.0,
  draft_encoder=3.0,
)


def test_costs_of_calls_match_a_hand_calculation():
  assert COSTS.c == 0.1
  assert COSTS.block == 10
  assert COSTS.plain_seconds(10) == 70
  assert COSTS.seconds(4) == 71
  np.testing.assert_array_equal(COSTS.seconds([0, 1]), [23, 35])


def test_theorem_3_8_holds_for_free_encoders_and_blocks_as_cheap_as_a_token():
  ideal = dataclasses.replace(COSTS, plain_start=0.0, start=0.0, iteration=7.0)
  theorem = theory.walltime_improvement(0.7, 4, 0.1)
  assert ideal.loop_improvement(0.7) == pytest.approx(theorem)
  calls = 25 / theory.expected_tokens(0.7, 4)
  assert ideal.plain_seconds(25) / ideal.seconds(calls) == pytest.approx(theorem)
  # A more expensive block reduces the gain.
  assert COSTS.loop_improvement(0.7) == pytest.approx(theorem * 7 / 12)


def decode(gamma, room):
  target, draft = Transformer(TARGET), Transformer(tiny.DRAFT)
  params = {"target": random_params(target, 1), "draft": random_params(draft, 2)}
  decoder = Decoder(target, DraftModel(draft, gamma))
  return study.Decode(decoder, params, GREEDY, room)


def test_every_part_of_a_pair_is_run_and_timed(monkeypatch):
  def clock(programs, inputs):
    for program in programs.values():
      jax.block_until_ready(program(inputs[0]))
    return steady(programs, inputs)

  monkeypatch.setattr(costs, "alternate", clock)
  inputs = jax.numpy.ones((1, 8), jax.numpy.int32)
  for gamma in (1, 2):
    measured = costs.measure_costs(decode(gamma, 60), gamma, inputs, runs=9)
    assert measured == dataclasses.replace(COSTS, gamma=gamma)
  with pytest.raises(ValueError, match=r"room for an iteration .* 3 tokens"):
    costs.measure_costs(decode(2, 2), 2, inputs, runs=3)
