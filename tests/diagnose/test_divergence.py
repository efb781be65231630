"""Verdicts on first differences, from handmade scorings."""

import doctest

import jax
import numpy as np
import pytest

from specdec_t5x.diagnose import divergence
from specdec_t5x.diagnose.divergence import DIFFERENT, TIE, first_difference

EPSILON = 2.0**-23  # float32
NOISE, LENGTH, SIZE = 1e-6, 4, 6


def scorings(examples=3, seed=0):
  """Returns plain logits with clear gaps, and two scorings that differ by rounding."""
  rng = np.random.default_rng(seed)
  plain = np.stack([rng.permutation(SIZE) for _ in range(examples * LENGTH)])
  plain = plain.reshape(examples, LENGTH, SIZE).astype(np.float32)

  def noise():
    return rng.uniform(-NOISE, NOISE, plain.shape).astype(np.float32)

  return plain, plain + noise(), plain + noise()


def diagnose(plain, speculative, whole, outputs=None):
  """Diagnoses the greedy outputs of both scorings, or `outputs`."""
  one, other = outputs or (plain.argmax(-1), speculative.argmax(-1))

  def pad(runs):
    return np.array([[*run, 0, 0, 0, 0][:LENGTH] for run in map(list, runs)])

  measures = divergence.measure(plain, speculative, whole, pad(one), pad(other))
  measures = jax.tree.map(np.asarray, measures)
  lists = ([list(map(int, run)) for run in runs] for runs in (one, other))
  return divergence.diagnose(*lists, measures, EPSILON)


def tied(gap):
  """Returns scorings that swap the two best tokens of example 1 at position 2."""
  plain, speculative, whole = scorings()
  plain[1, 2, 3] = 9.0 + gap
  plain[1, 2, 4] = 9.0
  speculative[1, 2, 3] = 9.0
  speculative[1, 2, 4] = 9.0 + gap
  whole[1, 2] = plain[1, 2]
  return plain, speculative, whole


def test_equal_outputs_have_nothing_to_report():
  report = diagnose(*scorings())
  assert (report.differences, report.beyond, report.close) == ((), 0, 0)
  assert (report.examples, report.positions) == (3, 3 * LENGTH)
  assert 0 < report.distance.median <= report.distance.largest <= 2 * NOISE
  assert report.smallest_gap == pytest.approx(1.0, abs=1e-4)


def test_two_tokens_closer_than_rounding_are_a_tie():
  runs = tied(NOISE)
  report = diagnose(*runs)
  (difference,) = report.differences
  assert (difference.example, difference.position) == (1, 2)
  assert (difference.tokens, difference.verdict) == ((3, 4), TIE)
  assert (report.ties, report.bugs, report.close) == (1, 0, 1)
  # After the difference the prefixes differ, so later logits are not compared.
  assert report.positions == 3 * LENGTH - 1
  assert difference.gaps == pytest.approx((NOISE, NOISE), rel=0.1)
  assert difference.logits[0] == pytest.approx((9.0, 9.0))


@pytest.mark.parametrize("gap", [1e-4, 1.0])
def test_a_gap_larger_than_rounding_is_different(gap):
  runs = tied(gap)
  report = diagnose(*runs)
  (difference,) = report.differences
  assert difference.verdict == DIFFERENT
  assert "more than rounding" in difference.reason
  assert report.bugs == 1
  assert report.beyond == 1
  # The naive criterion would accept the difference.
  assert max(difference.gaps) <= 2 * difference.distance


def test_a_token_that_is_not_the_run_s_argmax_is_different():
  runs = tied(NOISE)
  runs[1][1, 2] = runs[0][1, 2]  # Both scorings prefer 3 to 4.
  plain = runs[0].argmax(-1)
  other = plain.copy()
  other[1, 2] = 4
  (difference,) = diagnose(*runs, (plain, other)).differences
  assert difference.verdict == DIFFERENT
  assert difference.reason.startswith("the speculative run's token")
  (difference,) = diagnose(*runs, (other, plain)).differences
  assert difference.reason.startswith("the plain run's token")


def test_an_output_that_stops_early_is_different():
  runs = scorings()
  plain = [list(output) for output in runs[0].argmax(-1)]
  for short, stopped in ((1, "speculative"), (0, "plain")):
    outputs = [plain, [*plain[:2], plain[2][:3]]]
    (difference,) = diagnose(*runs, outputs[:: 1 if short else -1]).differences
    assert (difference.example, difference.position) == (2, 3), stopped
    assert difference.tokens[short] is None
    assert difference.verdict == DIFFERENT


@pytest.mark.parametrize(("scoring", "value"), [(0, np.nan), (1, np.inf), (2, -np.inf)])
def test_a_tie_with_nan_or_infinite_logits_is_different(scoring, value):
  runs = tied(NOISE)
  plain, speculative = (run.argmax(-1) for run in runs[:2])
  # Neither run chose the token.
  runs[scoring][1, 2, 0] = value
  report = diagnose(*runs, (plain, speculative))
  (difference,) = report.differences
  assert (difference.verdict, report.not_numbers) == (DIFFERENT, (1,))
  assert difference.reason == "the logits are not numbers"


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_equal_outputs_with_nan_or_infinite_logits_are_reported(value):
  runs = scorings()
  outputs = [run.argmax(-1) for run in runs[:2]]
  for run in runs:
    run[2, 1:] = value
  report = diagnose(*runs, outputs)
  assert (report.differences, report.not_numbers) == ((), (2,))
  # The remaining positions are compared.
  assert (report.positions, report.beyond) == (2 * LENGTH + 1, 0)
  assert 0 < report.distance.largest <= 2 * NOISE


def test_logits_beyond_an_output_may_be_anything():
  plain, speculative, whole = scorings()
  outputs = [run.argmax(-1)[:, : LENGTH - 1] for run in (plain, speculative)]
  plain[:, -1] = np.nan
  assert diagnose(plain, speculative, whole, outputs).not_numbers == ()


def test_observed_rounding_never_excuses_the_loss_of_half_of_the_digits():
  plain, speculative, whole = tied(0.1)
  whole += 0.5  # The plain logits then look wrong.
  (difference,) = diagnose(plain, speculative, whole).differences
  assert difference.verdict == DIFFERENT
  assert difference.limit == pytest.approx(np.sqrt(EPSILON) * 9.1, rel=1e-3)


def test_wrong_logits_without_a_changed_token_are_counted():
  plain, speculative, whole = scorings()
  speculative[0, 1] += 0.01
  report = diagnose(plain, speculative, whole)
  assert (report.differences, report.beyond) == ((), 1)


def test_equal_bits_are_counted():
  plain, _, whole = scorings()
  speculative = plain.copy()
  speculative[0, 0, 0] += 1e-3
  assert diagnose(plain, speculative, whole).identical == 3 * LENGTH - 1


def test_first_differences():
  assert doctest.testmod(divergence).failed == 0
  assert doctest.testmod(divergence).attempted == 2
  assert first_difference([1], [1]) is None
  assert first_difference([], [3]) == 0
