"""Drafts are made while they pay, and no more."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoders import PlainDecoder
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.paying import Paying, PayingState
from specdec_t5x.drafters.registry import get_drafter, headed
from specdec_t5x.network.functional import network_for
from tests.drafters.test_heads import INPUTS, SHAPES, decoder, pair, run
from tests.hash_model import HashModel, speculation
from tests.t5x_bridge import tiny

INNER = DraftModel(HashModel(1, 4), 3)
PAYING = Paying(INNER, (1.0, 2.0), prior_weight=1.0)


def rests(tokens, iterations, has_rested=(False, False), ended=(False, False)):
  """Whether two rows rest that have put out so much in so many iterations."""
  keys = row_keys(jax.random.key(0), 2)
  spec, state = speculation(HashModel(0, 4), INNER, RULES["token"], GREEDY, keys, 40)
  state = state.replace(
    lengths=state.starts + jnp.array(tokens),
    iteration=jnp.array(iterations),
    ended=jnp.array(ended),
    drafter_state=PayingState(None, jnp.array(has_rested)),
  )
  return bool(PAYING.rests(spec.context, state))


def test_it_rests_where_iterations_bring_less_than_they_cost():
  # 2 tokens a call pay. The prior is one call of 1 + 0.8 + 0.64 + 0.512 = 2.952, and
  # each row's first iteration is no part of it.
  assert not rests((0, 0), (0, 0))
  assert not rests((1, 1), (1, 1))
  assert rests((4, 1), (3, 1))  # (2.952 + 3) / (1 + 2) = 1.98
  assert rests((3, 3), (3, 3))  # (2.952 + 4) / (1 + 4) = 1.39
  assert not rests((6, 6), (3, 3))  # (2.952 + 10) / (1 + 4) = 2.59


def test_a_row_that_has_ended_does_not_count():
  assert rests((3, 9), (3, 3), ended=(False, True))
  assert not rests((9, 3), (3, 3), ended=(False, True))


def test_a_batch_that_rests_goes_on_so_until_its_rows_have_ended():
  known = (9, 9), (3, 3)
  assert rests(*known, has_rested=(True, False))
  assert not rests(*known, has_rested=(True, False), ended=(True, False))
  assert PAYING.rested(PayingState(None, jnp.zeros(2, bool))).has_rested.all()


def test_it_is_tuned_with_what_was_measured(capsys):
  asked = []

  def time(told, amounts):
    asked.append((told(0).drafter, tuple(amounts)))
    return (1.0, cost) if cost else ()

  cost = 2.9  # Of a prior of 2.952.
  assert Paying(INNER).tuned(time) == Paying(INNER, (1.0, 2.9))
  assert "from 2.90 tokens a call on: 2.95 at alpha 0.8." in capsys.readouterr().err
  cost = 3.0
  assert Paying(INNER).tuned(time) is None
  assert "so decoding plainly" in capsys.readouterr().err
  cost = None
  assert Paying(INNER).tuned(time) is INNER
  assert PAYING.tuned(time) is PAYING
  assert asked == [(INNER, (0, 1))] * 3


@pytest.mark.parametrize("kind", ["parallel", "hydra"])
@pytest.mark.parametrize("slots", [0, 2])
def test_outputs_are_the_target_s_own_whenever_it_rests(kind, slots):
  speculative, params = decoder(kind, SHAPES["tree"])
  always = dataclasses.replace(speculative, slots=slots)
  drafter = Paying(speculative.drafter, (1.0, 1.5), prior_weight=2.0)
  paying = dataclasses.replace(always, drafter=drafter)
  inputs = jnp.concatenate([INPUTS, INPUTS[::-1] + 1])
  plain = run(PlainDecoder(speculative.target), params, GREEDY, inputs)
  found = run(paying, params, GREEDY, inputs)
  np.testing.assert_array_equal(found.tokens, plain.tokens)
  drafted = found.statistics.drafted.sum()
  assert 0 < drafted < run(always, params, GREEDY, inputs).statistics.drafted.sum()


def test_times_are_measured_of_a_decode_that_drafts_and_one_that_does_not(
  tmp_path, monkeypatch
):
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(tmp_path))
  speculative, params = decoder("medusa", SHAPES["chain"])
  measured = []

  class Told(Paying):
    def tuned(self, time):
      found = super().tuned(time)
      measured.append(found)
      return found

  run(
    dataclasses.replace(speculative, drafter=Told(speculative.drafter)), params, GREEDY
  )
  (found,) = measured
  assert found is None or len(found.seconds) == 2
  assert len(list(tmp_path.glob("seconds-*.json"))) == 1


def test_heads_by_name_draft_while_it_pays():
  _, heads, _ = pair("medusa")
  assert get_drafter("heads", heads, policy="auto") == Paying(headed(heads))
  assert headed(heads, policy="auto") == Paying(headed(heads))
  assert get_drafter("heads", heads, policy="fixed") == headed(heads)


def test_what_can_t_be_is_refused():
  _, heads, _ = pair("medusa")
  for make, message in [
    (lambda: Paying(INNER, (1.0,)), "needs two times above 0"),
    (lambda: Paying(INNER, (1.0, -1.0)), "needs two times above 0"),
    (lambda: Paying(INNER, prior_alpha=2.0), "a prior_alpha from 0 to 1"),
    (lambda: Paying(INNER, prior_weight=0.0), "a prior_weight above 0"),
    (lambda: headed(heads, policy="confidence"), "must be 'auto' or 'fixed'"),
    (lambda: Paying(headed(heads)).check(network_for(tiny.DRAFT)), "heads of width"),
  ]:
    with pytest.raises(ValueError, match=message):
      make()
