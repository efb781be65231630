"""A step of beam search equals the same step in plain Python."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

from specdec_t5x.contrib.beam import hypotheses
from specdec_t5x.contrib.beam.hypotheses import BeamSettings

# (1 + ends) * WIDTH <= VOCAB: all first candidates extend the single hypothesis.
EOS = 1
WIDTH = 3
VOCAB = 12
LENGTH = 6
SETTINGS = BeamSettings(max_length=LENGTH, eos_id=EOS, alpha=0.6)
step = jax.jit(
  lambda beam, distributions: hypotheses.step(SETTINGS, beam, distributions)
)


def random_probs(rng, rows=4):
  logits = 2 * rng.normal(size=(rows, WIDTH, VOCAB))
  return log_softmax(logits, axis=-1).astype(np.float32)


def python_step(live, finished, distribution, steps, ends=(EOS,)):
  """Takes a step; `live` has (log-probability, tokens), `finished` (score, tokens)."""
  extended = [
    (total + float(distribution[i, x]), (*tokens, x))
    for i, (total, tokens) in enumerate(live)
    for x in range(VOCAB)
  ]
  candidates = sorted(extended)[-(1 + len(ends)) * WIDTH :]
  going_on = [c for c in candidates if c[1][-1] not in ends]
  penalty = ((5 + steps) / 6) ** SETTINGS.alpha
  ended = [(total / penalty, tokens) for total, tokens in candidates]
  ended = [candidate for candidate in ended if candidate[1][-1] in ends]
  return going_on[-WIDTH:], sorted(finished + ended)[-WIDTH:]


@pytest.mark.parametrize("ends", [(EOS,), (EOS, 4), (6, EOS, 2)])
def test_steps_equal_python_steps(ends):
  settings = dataclasses.replace(SETTINGS, eos_id=ends)
  step = jax.jit(functools.partial(hypotheses.step, settings))
  rng = np.random.default_rng(0)
  rows = 4
  beam = hypotheses.start(rows, WIDTH, LENGTH)
  live = [[(hypotheses.NOTHING, ())] * (WIDTH - 1) + [(0.0, ())] for _ in range(rows)]
  finished = [[] for _ in range(rows)]
  for steps in range(1, LENGTH + 1):
    distributions = random_probs(rng)
    before = beam
    beam, extension = jax.tree.map(np.array, step(beam, distributions))
    for row in range(rows):
      live[row], finished[row] = python_step(
        live[row], finished[row], distributions[row], steps, ends
      )
      assert_row(beam, row, live[row], finished[row], steps)
      # An extension gives the parent hypothesis and the token of each live hypothesis.
      rebuilt = np.array(before.live_tokens)[row][extension.parents[row]]
      rebuilt[:, steps] = extension.tokens[row]
      np.testing.assert_array_equal(rebuilt, beam.live_tokens[row])
    np.testing.assert_array_equal(beam.last_tokens, extension.tokens)


def assert_row(beam, row, live, finished, steps):
  tokens = beam.live_tokens[row, :, 1 : steps + 1].tolist()
  assert tokens == [list(tokens) for _, tokens in live]
  np.testing.assert_allclose(beam.live_scores[row], [s for s, _ in live], rtol=1e-5)
  taken = beam.is_finished[row]
  assert taken.sum() == len(finished)
  # Free slots come first, since they have the lowest score.
  scores = beam.finished_scores[row]
  assert (scores[~taken] == hypotheses.NOTHING).all()
  np.testing.assert_allclose(scores[taken], [s for s, _ in finished], rtol=1e-5)
  for found, (_, expected) in zip(
    beam.finished_tokens[row][taken], finished, strict=True
  ):
    padding = [0] * (LENGTH - len(expected))
    assert found.tolist() == [0, *expected, *padding]


def test_rows_may_be_at_different_steps():
  distributions = random_probs(np.random.default_rng(1))
  start = hypotheses.start(4, WIDTH, LENGTH)
  first, _ = step(start, distributions)
  # Row 1 stays behind. Rows 0 and 1 then take the step that row 0 would take alone.
  mixed = jax.tree.map(lambda ahead, behind: ahead.at[1].set(behind[1]), first, start)
  mixed, _ = step(mixed, distributions)
  alone, _ = step(first, distributions)
  assert mixed.num_steps.tolist() == [2, 1, 2, 2]
  for found, expected in ((mixed, alone), (mixed, first)):
    row = 0 if expected is alone else 1
    np.testing.assert_array_equal(found.live_tokens[row], expected.live_tokens[row])
    np.testing.assert_array_equal(
      found.finished_scores[row], expected.finished_scores[row]
    )


@pytest.mark.parametrize(
  ("live", "worst_finished", "num_steps", "expected"),
  [
    (-1.0, -2.0, 2, True),
    # The bound is -3 over the penalty of length 6, about -2.1.
    (-3.0, -2.0, 2, False),
    (-3.0, -2.2, 2, True),
    (-50.0, hypotheses.NOTHING, 2, True),
    (-1.0, -2.0, LENGTH, False),
  ],
)
def test_a_search_ends_if_nothing_can_enter_the_pool(
  live, worst_finished, num_steps, expected
):
  beam = hypotheses.start(1, WIDTH, LENGTH).replace(
    num_steps=jnp.array([num_steps]),
    live_scores=jnp.array([[-90.0, live - 1.0, live]]),
    finished_scores=jnp.array([[worst_finished, -0.2, -0.1]]),
  )
  assert bool(hypotheses.searching(SETTINGS, beam)[0]) is expected


def test_a_row_without_an_end_returns_its_live_hypotheses():
  beam = hypotheses.start(2, WIDTH, LENGTH)
  beam = beam.replace(
    is_finished=beam.is_finished.at[1, 2].set(True),
    finished_scores=beam.finished_scores.at[1, 2].set(-0.5),
    live_tokens=beam.live_tokens.at[:, :, 1].set(4),
  )
  tokens, scores = hypotheses.result(beam)
  assert tokens.shape == (2, WIDTH, LENGTH)
  assert scores[:, -1].tolist() == [0.0, -0.5]
  assert tokens[:, -1, 0].tolist() == [4, 0]


@pytest.mark.parametrize("alpha", [-0.1, float("inf"), float("nan")])
def test_bad_penalties_are_refused(alpha):
  with pytest.raises(ValueError, match="BEAM_ALPHA must be"):
    BeamSettings(LENGTH, EOS, alpha)
