"""A draft that learns from the target's distributions at rejected positions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specdec_t5x
from specdec_t5x.contrib.online.learner import (
  Learner,
  Online,
  Requests,
  known_probs,
  lumped,
)
from specdec_t5x.contrib.online.rejections import Rejections
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.training import losses
from specdec_t5x.training.objectives import forward
from specdec_t5x.training.optimizers import Optimizer, Schedule
from tests.t5x_bridge import tiny
from tests.training.conftest import assert_same, params_of

pytestmark = pytest.mark.slow

NETWORK = Transformer(tiny.DRAFT)
FAST = Optimizer(Schedule("constant", 0.01, 0), "adam")
ONLINE = Online(interval=2, kept=3, optimizer=FAST)
RNG = np.random.default_rng(0)
ROOM = 6
LENGTH = 8


def requests(count, seed=0):
  """Returns random requests with a rejection at about every second place."""
  rng = np.random.default_rng(seed)
  distributions = rng.dirichlet(np.ones(64), (count, LENGTH)).astype(np.float32)
  order = np.argsort(-distributions, axis=-1)[..., :3]
  probs = np.take_along_axis(distributions, order, axis=-1)
  is_kept = rng.random((count, LENGTH, 1)) < 0.5
  return Requests(
    rng.integers(3, 30, (count, ROOM)).astype(np.int32),
    rng.integers(3, 30, (count, LENGTH)).astype(np.int32),
    Rejections((order * is_kept).astype(np.int32), probs * is_kept),
  )


def with_rejections(served, **changes):
  return dataclasses.replace(served, rejections=served.rejections.replace(**changes))


def learner(online=ONLINE, seed=2):
  return Learner(NETWORK, params_of(NETWORK, seed), online)


forwarded = jax.jit(lambda params, batch: forward(NETWORK, params, batch))


def probs_of(draft, served, place):
  """Returns the draft's distribution at a place of the first request."""
  tokens = np.zeros((1, LENGTH), np.int32)
  tokens[0, 1 : place + 1] = served.tokens[0, :place]
  batch = {
    "encoder_input_tokens": served.inputs[:1],
    "decoder_input_tokens": tokens,
    "decoder_target_tokens": np.ones((1, LENGTH), np.int32),
  }
  return jax.nn.softmax(forwarded(draft.params, batch)[0, place])


# ---- The loss. ----


def test_losses_approach_the_full_distance_as_more_tokens_are_kept():
  @jax.jit
  def distances(target, draft):
    distribution = jax.nn.softmax(target)
    order = jnp.argsort(-target)
    found = {name: [] for name in losses.DISTILLATION_LOSSES}
    for kept in range(1, 9):
      tokens = order[:, :kept]
      known = known_probs(jnp.take_along_axis(distribution, tokens, axis=1))
      for name, distance in losses.DISTILLATION_LOSSES.items():
        found[name].append(distance(known, lumped(draft, tokens)))
    expected = [each(target, draft) for each in losses.DISTILLATION_LOSSES.values()]
    return list(found.values()), expected

  found, expected = map(np.asarray, distances(*2 * RNG.normal(size=(2, 5, 9))))
  assert (np.diff(found, axis=1) > -1e-5).all()
  np.testing.assert_allclose(found[:, -1], expected, atol=1e-4)


def test_a_distribution_without_remaining_mass_has_a_finite_loss():
  known = known_probs(jnp.array([1.0]))
  logits = jnp.array([-50.0, 50.0, 0.0])
  for distance in losses.DISTILLATION_LOSSES.values():
    loss = jax.value_and_grad(lambda q, d=distance: d(known, lumped(q, jnp.array([0]))))
    assert all(np.isfinite(x).all() for x in loss(logits))


# ---- Learning. ----


def test_the_draft_learns_the_target_s_distribution_at_rejected_places():
  served = requests(1)
  place = 4
  probs = np.zeros_like(served.rejections.probs)
  probs[0, place] = [0.6, 0.3, 0.05]
  tokens = np.tile(np.array([9, 20, 31], np.int32), (1, LENGTH, 1))
  served = with_rejections(served, tokens=tokens, probs=probs)
  draft = learner(Online(interval=1, kept=3, loss="reverse_kl", optimizer=FAST))
  before = probs_of(draft, served, place - 1)
  values = [draft.learn(served)[0] for _ in range(150)]
  assert values[-1] < 0.01 < values[0]
  distribution = probs_of(draft, served, place)
  np.testing.assert_allclose(
    distribution[jnp.array([9, 20, 31])], probs[0, place], atol=0.03
  )
  # The place before has no example, and changes only by generalization.
  assert has_changed(probs_of(draft, served, place - 1), before)


def test_distributions_one_place_off_fail(monkeypatch):
  batches = Requests.batches

  def shifted(self, size):
    for batch in batches(self, size):
      yield {**batch, "decoder_input_tokens": batch["decoder_target_tokens"]}

  monkeypatch.setattr(Requests, "batches", shifted)
  with pytest.raises(AssertionError):
    test_the_draft_learns_the_target_s_distribution_at_rejected_places()


def test_accepted_places_teach_nothing():
  served = requests(2)
  kept = served.rejections
  is_kept = kept.probs.sum(-1, keepdims=True) > 0
  garbage = RNG.integers(0, 64, kept.tokens.shape).astype(np.int32)
  changed = with_rejections(served, tokens=np.where(is_kept, kept.tokens, garbage))
  first = learner()
  second = learner()
  assert first.learn(served) == second.learn(changed)
  assert_same(first.state, second.state)


def test_a_partial_batch_takes_the_same_step_as_a_full_batch():
  full, padded = (learner(Online(n, 3, optimizer=FAST)) for n in (2, 3))
  served = requests(2)
  np.testing.assert_allclose(full.learn(served), padded.learn(served), rtol=1e-5)
  for a, b in zip(*(jax.tree.leaves(x.params) for x in (full, padded)), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_steps_follow_the_interval_and_need_rejections():
  draft = learner()
  served = requests(2)
  start = draft.params
  nothing = with_rejections(served, probs=0 * served.rejections.probs)
  assert draft.learn(nothing) == [0.0]
  assert_same(draft.params, start)
  assert len(draft.learn(requests(5))) == draft.steps - 1 == 3
  assert has_changed(draft.params, start)


def has_changed(one, other):
  changed = jax.tree.map(lambda a, b: (a != b).any(), one, other)
  return any(jax.tree.leaves(changed))


def test_served_parameters_keep_their_dtype_and_are_a_copy():
  params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params_of(NETWORK))
  draft = Learner(NETWORK, params, ONLINE)
  served = draft.params
  before = jax.device_get(served)
  assert {x.dtype for x in jax.tree.leaves(served)} == {jnp.dtype(jnp.bfloat16)}
  draft.learn(requests(4))
  assert_same(jax.device_get(served), before)


# ---- Saved. ----


def test_a_saved_draft_loads_and_replaces_a_killed_save(tmp_path):
  draft = learner()
  for name in ("partial/checkpoint_1", "checkpoint_1"):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "left").write_text("")
  draft.learn(requests(2))
  path = draft.save(str(tmp_path))
  assert [str(path)] == [str(each) for each in tmp_path.iterdir()]
  assert not (path / "left").exists()
  assert_same(specdec_t5x.load_model(str(path)).params.unfreeze(), draft.params)


def test_drafts_that_cannot_learn_are_refused():
  tokens = {"hot": jnp.zeros(3, jnp.int32)}
  with pytest.raises(ValueError, match=r"trimmed to hot tokens, .* can't be trained"):
    Learner(NETWORK, {**params_of(NETWORK), **tokens}, ONLINE)
  served = requests(2)
  lost = np.where(served.rejections.probs > 0, np.float32(np.inf), 0)
  with pytest.raises(ValueError, match=r"diverged: at step 1 .* Lower LEARNING_RATE"):
    learner().learn(with_rejections(served, probs=lost))
