"""A draft that learns from a request leaves the next request exact.

The first request is driven along every path of a decode. A draft learns from the
results of each path, as in serving. The second request is driven along every path with
each learned draft. The test thus enumerates the joint distribution of both outputs.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.contrib.online.learner import known_probs, lumped
from specdec_t5x.contrib.online.rejections import KeepRejections
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.training.losses import forward_kl
from tests.exactness.driving import (
  PLACES,
  Driven,
  difference,
  drive,
  loop_paths,
  probs_along,
  uniforms_along,
)
from tests.exactness.enumeration import outputs_of
from tests.hash_model import GivenTable, HashModel, place_weights, speculation

TARGET = HashModel(3, vocab_size=3)
DRAFT = HashModel(4, vocab_size=3)
SHAPE = chain(2)
LENGTH = 3
KEPT = 2
RATE = 2.0


@dataclasses.dataclass(frozen=True)
class Learned(HashModel):
  """A table after steps of learning, given as changes to rows of the table."""

  changes: tuple[tuple[int, tuple[float, ...]], ...] = ()

  @functools.cached_property
  def table(self):
    table = HashModel(self.seed, self.vocab_size).table
    for row, change in self.changes:
      table[row] += np.float32(change)
    return table


def first_request(sampling, rule):
  """Returns every path of the first request, and the observations of each path."""
  _, paths = loop_paths((TARGET, DRAFT, rule, SHAPE, LENGTH), sampling)
  _, prescribed, _ = uniforms_along(paths, (LENGTH, 2 * SHAPE.size + 1))
  keys = row_keys(jax.random.key(0), len(paths))
  drafter = DraftModel(DRAFT, SHAPE.size)
  spec, state = speculation(TARGET, drafter, RULES[rule], sampling, keys, LENGTH)
  observe = KeepRejections(KEPT)
  state = state.replace(observed=observe.start(len(paths), LENGTH))
  state = Driven(**vars(state), prescribed=prescribed)
  found = jax.jit(lambda: generate(spec, state, observe=observe))()
  kept_arrays = found.observed.tokens, found.observed.probs
  return paths, [np.asarray(x) for x in (found.tokens, *kept_arrays)]


@jax.jit
def gradient(logits, tokens, probs):
  """Returns the gradient of the loss of one table row on a place's distribution [K]."""

  def loss(logits):
    return forward_kl(known_probs(probs), lumped(logits, tokens))

  return jax.grad(loss)(logits)


def learned(output, tokens, probs):
  """Returns the draft after a step on a path's observed distributions [T, K]."""
  changes = []
  for place in np.flatnonzero(probs.sum(-1) > 0):
    prefix = 0, *output[:place].tolist()
    terms = [(x + 1) * place_weights(64)[i] for i, x in enumerate(prefix)]
    row = int(sum(terms) % 97)
    change = -RATE * gradient(DRAFT.table[row], tokens[place], probs[place])
    changes.append((row, tuple(change.tolist())))
  return Learned(4, 3, changes=tuple(changes))


@pytest.mark.parametrize(
  ("sampling", "rule"),
  [
    (Sampling(1.0, top_p=0.9), "token"),
    pytest.param(Sampling(), "block", marks=pytest.mark.slow),
  ],
  ids=["token", "block"],
)
def test_two_requests_have_the_target_s_joint_distribution(sampling, rule):
  paths, found = first_request(sampling, rule)
  distributions = {}  # Maps each learned draft to the first output's distribution.
  for i, path in enumerate(paths):
    output = tuple(found[0][i].tolist())
    draft = learned(*(x[i] for x in found))
    distribution = distributions.setdefault(draft, {})
    distribution[output] = distribution.get(output, 0.0) + path.probability
  assert len(distributions) > 3, "the second draft does not depend on the first output"
  setting, _ = loop_paths((TARGET, DRAFT, rule, SHAPE, LENGTH), sampling)
  alone = outputs_of(setting)
  for at in range(PLACES):
    joint = {}
    for draft, firsts in distributions.items():
      seconds = second_probs(draft, sampling, rule)[at]
      for one, mass in firsts.items():
        for two, chance in seconds.items():
          joint[one, two] = joint.get((one, two), 0.0) + mass * chance
    expected = {(a, b): p * q for a, p in alone.items() for b, q in alone.items()}
    assert difference(joint, expected) < 1e-6


@functools.cache
def second_request(sampling, rule):
  """Returns a program of the second request that takes the draft's table."""

  def run(table, uniforms):
    drafter = DraftModel(GivenTable(table, DRAFT.vocab_size), SHAPE.size)
    return drive(uniforms, TARGET, drafter, sampling, rule)

  return jax.jit(run)


def second_probs(draft, sampling, rule):
  """Returns the distribution of the second output at each place of the cells."""
  _, paths = loop_paths((TARGET, draft, rule, SHAPE, LENGTH), sampling)
  program = second_request(sampling, rule)
  table = jnp.asarray(draft.table)

  def run(uniforms):
    # Repeating rows up to a power of two keeps shapes and programs few.
    size = 1 << (len(uniforms) - 1).bit_length()
    repeated = jnp.resize(uniforms, (size, *uniforms.shape[1:]))
    return program(table, repeated)[: len(uniforms)]

  return probs_along(paths, run, 2 * SHAPE.size + 1, LENGTH)
