"""Beam search with speculation equals plain beam search, on table models."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.beam.hypotheses import BeamSettings
from specdec_t5x.contrib.beam.search import BeamSearch, search
from specdec_t5x.contrib.beam.tree import Layout
from tests.contrib.beam.table_beams import MODULUS, WEIGHTS, TableModel, extend
from tests.hash_model import python_loop

TARGET = TableModel(seed=1)
DRAFTS = {
  "bad": TableModel(seed=2),
  "good": dataclasses.replace(TARGET, noise=0.3),
  "perfect": TARGET,
}
INPUTS = (0, 5, 11, 40, 63)  # Distributions differ, so rows end at different times.
LENGTH = 9


def run(
  target=TARGET,
  draft=None,
  *,
  width=3,
  draft_width=None,
  gamma=0,
  inputs=INPUTS,
  length=LENGTH,
  alpha=0.6,
  compiled=True,
  eos_id=1,
):
  layout = Layout(width, draft_width or width, gamma, length)
  slots = layout.num_slots
  target_cache = target.start(inputs, slots)
  draft_cache = draft.start(inputs, slots) if draft else None
  settings = BeamSettings(length, eos_id=eos_id, alpha=alpha)
  if compiled:
    return run_compiled(target_cache, draft_cache, settings, layout, len(inputs))
  spec = BeamSearch(settings, layout, extend, extend)

  def loop(go_on, body, x):
    return python_loop(jax.jit(go_on), jax.jit(body), x)

  return search(spec, target_cache, draft_cache, len(inputs), loop)


@functools.partial(jax.jit, static_argnames=("settings", "layout", "rows"))
def run_compiled(target_cache, draft_cache, settings, layout, rows):
  spec = BeamSearch(settings, layout, extend, extend)
  return search(spec, target_cache, draft_cache, rows)


def assert_same(found, expected):
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_array_equal(found.scores, expected.scores)


# A gamma of 12 exceeds the room of 9 from the start. A beam of 7 is wider than the
# start token's distribution, so some hypotheses are empty at first.
@pytest.mark.parametrize(
  ("width", "draft_width", "gamma"),
  [(1, 3, 4), (3, 5, 3), (7, 9, 12)],
)
@pytest.mark.parametrize("kind", DRAFTS)
def test_speculation_gives_the_hypotheses_of_plain_search(
  kind, width, draft_width, gamma
):
  draft = DRAFTS[kind]
  found = run(draft=draft, width=width, draft_width=draft_width, gamma=gamma)
  expected = run(width=width)
  assert_same(found, expected)
  np.testing.assert_array_equal(found.info.steps, expected.info.steps)
  assert (found.info.target_calls <= expected.info.target_calls).all()


@pytest.mark.parametrize("ends", [(1, 3), (4, 1, 2)])
def test_several_end_tokens_end_hypotheses(ends):
  for draft in DRAFTS.values():
    found = run(draft=draft, draft_width=5, gamma=3, eos_id=ends)
    assert_same(found, run(eos_id=ends))
  last = {row[row > 0][-1] for row in np.asarray(found.tokens).reshape(-1, LENGTH)}
  assert last <= set(ends)
  assert len(last) > 1


@pytest.mark.parametrize("eos_bias", [-4.0, 2.0])
def test_outputs_of_any_length_and_other_penalties_match_plain_search(eos_bias):
  target = TableModel(seed=5, eos_bias=eos_bias)
  draft = dataclasses.replace(target, noise=0.5)
  settings = {"target": target, "alpha": 1.5}
  found = run(draft=draft, draft_width=5, gamma=3, **settings)
  assert_same(found, run(**settings))


GOOD = {"draft": DRAFTS["good"], "draft_width": 5, "gamma": 3}


def test_rows_advance_at_their_own_speed_and_statistics_add_up():
  info = run(**GOOD).info
  assert len(set(info.steps.tolist())) > 1
  assert len(set(info.target_calls.tolist())) > 1
  # Speculation saved calls, and missed some levels.
  assert (info.target_calls < info.steps).any()
  assert (info.accepted < info.tried).any()
  np.testing.assert_array_equal(info.steps, info.target_calls + info.accepted)
  assert (info.accepted <= info.tried).all()
  assert (info.tried <= info.drafted).all()
  # The first call of a row tries at least one level.
  assert (info.tried > 0).all()


def test_plain_search_makes_a_call_per_step():
  info = run().info
  np.testing.assert_array_equal(info.target_calls, info.steps)
  for count in (info.drafted, info.tried, info.accepted):
    assert not count.any()


def test_a_perfect_draft_is_accepted_at_every_level():
  target = TableModel(seed=4, eos_bias=-30.0)
  info = run(target=target, draft=target, draft_width=5, gamma=3).info
  calls = 3  # For 4 + 4 + 1 steps; the last call has no room for a level.
  np.testing.assert_array_equal(info.steps, LENGTH)
  np.testing.assert_array_equal(info.target_calls, calls)
  np.testing.assert_array_equal(info.drafted, LENGTH - calls)
  np.testing.assert_array_equal(info.accepted, info.drafted)


@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 0), (0.6, 2)])
def test_a_wide_beam_finds_the_best_hypotheses(alpha, gamma):
  length = 4
  target = TableModel(seed=3, vocab_size=4)
  draft = dataclasses.replace(target, noise=1.0) if gamma else None
  settings = {"width": 4**3, "gamma": gamma, "length": length, "alpha": alpha}
  found = run(target=target, draft=draft, **settings)
  for row, start in enumerate(INPUTS):
    best = target.hypotheses(start, length, alpha)[-5:]
    assert found.tokens[row, -5:].tolist() == [tokens for _, tokens in best]
    np.testing.assert_allclose(found.scores[row, -5:], [s for s, _ in best], atol=1e-5)


def test_a_row_does_not_depend_on_its_neighbours():
  many = run(**GOOD)
  few = run(inputs=INPUTS[3:], **GOOD)
  assert_same(few, jax.tree.map(lambda x: x[3:], many))
  chex.assert_trees_all_equal(few.info, jax.tree.map(lambda x: x[3:], many.info))


def test_compiled_loop_equals_the_python_loop():
  found = run(**GOOD)
  watched = run(compiled=False, **GOOD)
  np.testing.assert_array_equal(found.tokens, watched.tokens)
  np.testing.assert_allclose(found.scores, watched.scores, rtol=1e-6)
  chex.assert_trees_all_equal(found.info, watched.info)


class Broken(TableModel):
  """A table with a NaN logit after two tokens of input 2."""

  @property
  def table(self):
    table = super().table
    best = run().tokens[2, -1, :2]
    tokens = np.array([0, *best]) + 1
    row = (INPUTS[2] + (tokens * WEIGHTS[:3]).sum()) % MODULUS
    return table.at[row, 4].set(jnp.nan)


@pytest.mark.parametrize(
  "draft", [{}, {"draft": DRAFTS["good"], "gamma": 2, "draft_width": 4}], ids=len
)
def test_a_search_with_nan_has_nan_scores(draft):
  found = run(Broken(seed=1), **draft)
  clean = run()
  is_lost = np.isnan(found.scores)
  assert is_lost[2].all()
  # Further inputs may read the same row of the table, but not all inputs.
  np.testing.assert_array_equal(is_lost.any(axis=1), is_lost.all(axis=1))
  kept = ~is_lost.any(axis=1)
  assert kept.any()
  np.testing.assert_array_equal(found.scores[kept], clean.scores[kept])
  np.testing.assert_array_equal(found.tokens[kept], clean.tokens[kept])
