"""Simulated tokens an iteration against the enumeration of every outcome."""

import numpy as np
import pytest

from specdec_t5x.analysis import simulation
from specdec_t5x.analysis.theory import expected_tokens
from specdec_t5x.core.tree import delayed
from tests.exactness import enumeration, oracles

GAMMA, SAMPLES = 3, 40_000
# Several standard errors: a sound simulation fails once in 10,000 runs, and the seed is
# fixed.
SIGMAS = 4


def laws(seed, gamma=GAMMA, size=3):
  rng = np.random.default_rng(seed)
  p, q = rng.dirichlet(np.full(size, 0.7), size=(2, gamma))
  if seed == 2:
    q[:, 0], p[:, 1] = 0, 0  # Tokens that one of them never says.
    p, q = (law / law.sum(axis=1, keepdims=True) for law in (p, q))
  return p, q


def enumerated(p, q, judge, num_candidates=1):
  """The exact mean, over every draft and every test."""
  # What follows the draft decides nothing.
  pad = lambda laws: np.vstack([laws, np.full(laws.shape[1], 1 / laws.shape[1])])
  target, draft = pad(p), pad(q)
  setting = enumeration.Setting(
    target=lambda prefix: target[len(prefix)],
    draft=lambda prefix: draft[len(prefix)],
    judge=judge,
    tree=delayed(0, num_candidates, len(p)).parents,
    max_length=100,
    eos_id=-1,
  )
  paths = enumeration.explore(lambda world: enumeration.iterate(world, setting, ()))
  return sum(path.probability * len(path.result[-1]) for path in paths)


def close(found, exact):
  return abs(found.mean - exact) <= SIGMAS * found.standard_error + 1e-12


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_block_verification(seed):
  p, q = laws(seed)
  found = simulation.block_tokens(p, q, SAMPLES, np.random.default_rng(seed))
  assert close(found, enumerated(p, q, oracles.block))
  assert found.mean >= simulation.token_tokens(p, q) - SIGMAS * found.standard_error
  assert found.standard_error < 0.01


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_token_verification_is_exact(seed):
  p, q = laws(seed)
  exact = enumerated(p, q, oracles.token)
  assert simulation.token_tokens(p, q) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 2])
def test_kseq(seed, count):
  p, q = laws(seed, gamma=2, size=3 if count < 3 else 2)
  rng = np.random.default_rng(seed)
  found = simulation.kseq_tokens(p, q, count, SAMPLES, rng)
  assert close(found, enumerated(p, q, oracles.kseq, count))


def test_one_law_everywhere_is_the_closed_form():
  p, q = np.tile([[0.5, 0.5]], (4, 1)), np.tile([[0.9, 0.1]], (4, 1))
  assert simulation.token_tokens(p, q) == pytest.approx(expected_tokens(0.6, 4))


def test_equal_laws_accept_everything():
  p, _ = laws(0)
  rng = np.random.default_rng(0)
  found = simulation.block_tokens(p, p, 100, rng)
  assert found.mean == pytest.approx(GAMMA + 1)
  assert simulation.kseq_tokens(p, p, 2, 100, rng).mean == GAMMA + 1


def test_the_standard_error_is_that_of_the_mean():
  p, q = laws(1)
  means = [
    simulation.kseq_tokens(p, q, 2, 500, np.random.default_rng(i)) for i in range(200)
  ]
  spread = np.std([each.mean for each in means])
  claimed = np.mean([each.standard_error for each in means])
  assert spread == pytest.approx(claimed, rel=0.2)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda p, q, rng: simulation.block_tokens(p, q, 1, rng), "samples must be"),
    (lambda p, q, rng: simulation.block_tokens(p[0], q[0], 9, rng), r"got shapes \(3,"),
    (lambda p, q, rng: simulation.block_tokens(2 * p, q, 9, rng), "p's sum"),
    (lambda p, q, rng: simulation.kseq_tokens(p, q, 0, 9, rng), "num_candidates must"),
    (lambda p, q, rng: simulation.kseq_tokens(p, q, 2, 0, rng), "samples must be"),
    (lambda p, q, rng: simulation.token_tokens(p, q[:1]), "got shapes"),
  ],
)
def test_bad_input_is_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call(*laws(0), np.random.default_rng(0))
