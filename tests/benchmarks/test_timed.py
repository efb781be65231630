"""Programs are timed in turn, and parts of a decode are differences of loops."""

import dataclasses

import jax
import numpy as np
import pytest

from benchmarks import study, timed
from benchmarks.sizes import random_params
from benchmarks.timed import Costs, alternate, median_ratio
from specdec_t5x.analysis import theory
from specdec_t5x.api import Model
from specdec_t5x.network.transformer import Transformer
from tests.benchmarks.conftest import TARGET, steady
from tests.t5x_bridge import tiny

# An iteration drafts 4 tokens in 2 s and scores the block in 10 s. A token takes 5 s.
COSTS = Costs(
  gamma=4, plain=5.0, plain_start=20.0, iteration=12.0, start=23.0, draft=2.0
)


def test_programs_take_turns_and_the_first_round_is_not_timed():
  calls = []

  def program(name):
    return lambda value: calls.append((name, value)) or np.ones(value)

  timed = alternate({"a": program("a"), "b": program("b")}, [1, 2])
  assert calls == [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
  assert [result.size for result in timed["b"].results] == [1, 2]
  assert (timed["a"].seconds > 0).all()
  assert timed["a"].seconds.shape == (2,)


def test_the_ratio_is_the_median_of_ratios():
  spread = median_ratio(np.array([1.0, 2.0, 30.0]), np.array([1.0, 1.0, 1.0]))
  assert (spread.low, spread.median, spread.high) == (1.5, 2.0, 16.0)


def test_a_loop_that_is_lost_in_noise_is_refused():
  with pytest.raises(ValueError, match=r"time of \['plain'\] is lost in noise"):
    timed.medians({"plain": np.array([-1.0, 0.0, 1.0])})


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


@pytest.mark.slow
def test_every_loop_of_a_pair_is_run_and_timed(monkeypatch):
  calls = {}

  def clock(programs, inputs):
    for key, program in programs.items():
      decoded = jax.block_until_ready(program(inputs[0]))
      calls[key] = int(decoded.statistics.target_calls.sum())
    return steady(programs, inputs)

  monkeypatch.setattr(timed, "alternate", clock)
  target, draft = Transformer(TARGET), Transformer(tiny.DRAFT)
  models = (
    Model(target, random_params(target, 1)),
    Model(draft, random_params(draft, 2)),
  )
  job = study.Job("task", "t", {}, None, 60)
  loaded = study.Study(job, models[0], (), study.pad_inputs([[5, 6, 7]]), 1)
  for gamma in (1, 2):
    decode = loaded.decode(0.0, models[1], "draft_model", gamma=gamma)
    costs = loaded.costs({"ours": decode}, runs=9)["ours"]
    assert costs == dataclasses.replace(COSTS, gamma=gamma)
    # The draft that is thrown away changes no count of calls.
    assert calls[("ours", 0), 10] == calls[("ours", 1), 10] == 10
