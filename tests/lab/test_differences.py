"""`python -m lab differences`: verdicts on handmade scorings, and planted bugs."""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lab import differences
from lab.__main__ import main
from specdec_t5x import api
from specdec_t5x.core.rules.token import Greedy
from specdec_t5x.core.types import Verdict
from specdec_t5x.decoding.decoder import Decoder
from tests import near_ties
from tests.t5x_bridge import tiny

EPSILON = 2.0**-23  # float32
NOISE, LENGTH, SIZE = 1e-6, 4, 6
NOT_BEST = "run's token is not the best token of the run's logits"


def scorings(examples=3, seed=0):
  """Returns plain logits with clear margins, and two scorings with rounding."""
  rng = np.random.default_rng(seed)
  plain = np.stack([rng.permutation(SIZE) for _ in range(examples * LENGTH)])
  plain = plain.reshape(examples, LENGTH, SIZE).astype(np.float32)
  noise = rng.uniform(-NOISE, NOISE, (2, *plain.shape)).astype(np.float32)
  return plain, plain + noise[0], plain + noise[1]


def judge(plain, speculative, whole, outputs=None):
  """Judges the greedy outputs of both scorings, or `outputs`."""
  one, other = outputs or (plain.argmax(-1), speculative.argmax(-1))

  def pad(runs):
    return np.array([[*run, 0, 0, 0, 0][:LENGTH] for run in map(list, runs)])

  logits = jnp.stack([plain, speculative, whole])
  measures = differences.measure(logits, jnp.stack([pad(one), pad(other)]))
  lists = ([list(map(int, run)) for run in runs] for runs in (one, other))
  return differences.judge(*lists, jax.tree.map(np.asarray, measures), EPSILON)


def tied(margin):
  """Returns scorings that swap the two best tokens of example 1 at position 2."""
  plain, speculative, whole = scorings()
  plain[1, 2, 3], plain[1, 2, 4] = 9.0 + margin, 9.0
  speculative[1, 2, 3], speculative[1, 2, 4] = 9.0, 9.0 + margin
  whole[1, 2] = plain[1, 2]
  return plain, speculative, whole


def test_equal_outputs_have_no_difference_but_wrong_logits_are_counted():
  plain, speculative, whole = scorings()
  report = judge(plain, speculative, whole)
  assert (report.differences, report.beyond) == ((), 0)
  assert report.positions == 3 * LENGTH
  assert 0 < report.distance <= 2 * NOISE
  speculative[0, 1] += 0.01
  report = judge(plain, speculative, whole)
  assert (report.differences, report.beyond) == ((), 1)


def test_two_tokens_closer_than_rounding_are_a_tie():
  report = judge(*tied(NOISE))
  (difference,) = report.differences
  assert (difference.example, difference.position) == (1, 2)
  assert (difference.tokens, difference.reason) == ((3, 4), "")
  # After the difference the prefixes differ, so later logits are not compared.
  assert report.positions == 3 * LENGTH - 1
  assert difference.margins == pytest.approx((NOISE, NOISE), rel=0.1)


@pytest.mark.parametrize("margin", [1e-4, 1.0])
def test_a_margin_larger_than_rounding_is_different(margin):
  report = judge(*tied(margin))
  (difference,) = report.differences
  assert "more than rounding" in difference.reason
  # The naive criterion would accept the difference.
  assert max(difference.margins) <= 2 * difference.distance
  # Observed rounding never excuses the loss of half of the digits.
  plain, speculative, whole = tied(0.1)
  (difference,) = judge(plain, speculative, whole + 0.5).differences
  assert "more than rounding (0.0031)" in difference.reason  # sqrt(EPSILON) * 9.1


@pytest.mark.parametrize(("run", "order"), [("speculative", 1), ("plain", -1)])
def test_wrong_tokens_and_early_ends_are_different(run, order):
  runs = scorings()
  right = runs[0].argmax(-1)
  wrong = right.copy()
  wrong[1, 2] = (wrong[1, 2] + 1) % SIZE
  (difference,) = judge(*runs, (right, wrong)[::order]).differences
  assert difference.reason == f"the {run} {NOT_BEST}"
  short = [*right[:2], right[2][:3]]
  (difference,) = judge(*runs, (right, short)[::order]).differences
  assert (difference.example, difference.position) == (2, 3)
  assert difference.tokens[::order][1] is None
  assert difference.reason == "one run had ended, without an end of sequence"


@pytest.mark.parametrize(("scoring", "value"), [(0, np.nan), (1, np.inf), (2, -np.inf)])
def test_nan_and_infinite_logits_are_different(scoring, value):
  for runs, place in ((tied(NOISE), (1, 2)), (scorings(), (2, 1))):
    outputs = [run.argmax(-1) for run in runs[:2]]
    # Neither run chose the token.
    runs[scoring][*place, outputs[0][place] - 1] = value
    reasons = {x.example: x.reason for x in judge(*runs, outputs).differences}
    assert reasons == {place[0]: "the logits are not numbers"}


def test_logits_beyond_an_output_may_be_anything():
  plain, speculative, whole = scorings()
  outputs = [run.argmax(-1)[:, : LENGTH - 1] for run in (plain, speculative)]
  plain[:, -1] = np.nan
  assert judge(plain, speculative, whole, outputs).differences == ()


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
  """Returns the flags of a pair, a vocabulary and five lines of text."""
  root = tmp_path_factory.mktemp("differences")
  text = root / "lines.txt"
  text.write_text("\n".join(tiny.sentences(5, seed=4)))
  paths = {**tiny.save_pair(root, tiny.config(1, 16)), "input": str(text)}
  numbers = ("--gamma=3", "--max_length=10", "--batch_size=4", "--prefix=")
  return ["differences", *(f"--{n}={path}" for n, path in paths.items()), *numbers]


def test_strict_runs_have_equal_bits(flags, capsys):
  assert main([*flags, "--strict", "--dtype=bfloat16"]) == 0
  printed = capsys.readouterr().out
  assert "bfloat16: 0 of 5 outputs differ: 0 ties, 0 DIFFERENT." in printed
  assert "differ by up to 0, and" in printed


def test_a_gullible_rule_is_different(flags, monkeypatch, capsys):
  verify = Greedy.verify

  def accept_every_drafted_token(self, target_probs, proposal, uniforms):
    verdict = verify(self, target_probs, proposal, uniforms)
    return Verdict(proposal.num_valid, verdict.next_token)

  monkeypatch.setattr(Greedy, "verify", accept_every_drafted_token)
  assert main(flags) == 1
  assert f"DIFFERENT: the speculative {NOT_BEST}" in capsys.readouterr().out


def test_a_corrupted_cache_is_different(flags, monkeypatch, capsys):
  context = Decoder.context

  def corrupted_context(*args):
    ctx = context(*args)
    if ctx.drafter is None:
      return ctx
    target = ctx.target

    def extend(cache, tokens, *tree):
      is_later = (cache.index > 0)[:, None, None, None]
      # Planted: the first token's values have the wrong sign in one layer.
      negated = cache.values[0].at[:, :, 0].multiply(-1.0)
      values = jnp.where(is_later, negated, cache.values[0])
      cache = cache.replace(values=(values, *cache.values[1:]))
      return target.extend(cache, tokens, *tree)

    target_corrupted = dataclasses.replace(target, extend=extend)
    return dataclasses.replace(ctx, target=target_corrupted)

  monkeypatch.setattr(Decoder, "context", corrupted_context)
  assert main(flags) == 1
  assert "the runs' logits differ by more than rounding" in capsys.readouterr().out


def test_near_ties_are_ties():
  network, params = near_ties.target("float32")
  _, both = near_ties.pair("float32", gamma=3)
  target = api.Model(network, params)
  draft = api.Model(network, both["draft"])
  ids = [[token for token in row if token] for row in near_ties.inputs().tolist()]
  args = argparse.Namespace(gamma=3, max_length=24, batch_size=6, strict=False)
  report = differences.compare(target, draft, ids, (1,), args)
  assert {difference.reason for difference in report.differences} == {""}


@pytest.mark.parametrize(
  ("flag", "message"), [("--target=nowhere", "nowhere"), ("--gamma=0", "at least 1")]
)
def test_bad_input_is_one_line_and_status_2(flags, flag, message, capsys):
  with pytest.raises(SystemExit) as stopped:
    main([*flags, flag])
  assert stopped.value.code == 2
  last = capsys.readouterr().err.splitlines()[-1]
  assert last.startswith("python -m lab differences: error: ")
  assert message in last
