"""A draft that learned from a request, and the probs of the next: still the target's.

The first request is driven along every path of a decode; from what each path leaves, a
draft learns, as it does while serving; and with each draft that comes of it the second
request is driven along every path. So the joint distribution of both outputs is
enumerated.
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
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.training.losses import forward_kl
from tests.exactness.driving import (
  PLACES,
  Driven,
  difference,
  drive,
  loop_paths,
  outputs_of,
  probs_along,
  uniforms_along,
)
from tests.hash_model import GivenTable, HashModel, place_weights, speculation

TARGET, DRAFT = HashModel(3, vocab_size=3), HashModel(4, vocab_size=3)
SHAPE, LENGTH, KEPT, RATE = chain(2), 3, 2, 2.0


@dataclasses.dataclass(frozen=True)
class Learned(HashModel):
  """A table after steps of learning: changes of its rows' entries."""

  changes: tuple[tuple[int, tuple[float, ...]], ...] = ()

  @functools.cached_property
  def table(self):
    table = HashModel(self.seed, self.vocab_size).table
    for row, change in self.changes:
      table[row] += np.float32(change)
    return table


def first_request(sampling, rule):
  """Every path of the first request, and what its decode leaves."""
  _, paths = loop_paths((TARGET, DRAFT, rule, SHAPE, LENGTH), sampling)
  _, prescribed, _ = uniforms_along(paths, (LENGTH, 2 * SHAPE.size + 1))
  keys = row_keys(jax.random.key(0), len(paths))
  drafter = DraftModel(DRAFT, SHAPE.size)
  spec, state = speculation(TARGET, drafter, RULES[rule], sampling, keys, LENGTH)
  state, observe = Driven(**vars(state), prescribed=prescribed), KeepRejections(KEPT)
  found = jax.jit(lambda: generate(spec, state, observe=observe))()
  kept = found.observed.tokens, found.observed.probs
  return paths, [np.asarray(x) for x in (found.tokens, *kept)]


@jax.jit
def gradient(logits, tokens, probs):
  """Of the loss of one row of the table, on the distribution [K] that a place kept."""

  def loss(logits):
    return forward_kl(known_probs(probs), lumped(logits, tokens))

  return jax.grad(loss)(logits)


def learned(output, tokens, probs):
  """The draft after a step on the distributions [T, K] that a path kept."""
  changes = []
  for place in np.flatnonzero(probs.sum(-1) > 0):
    known = 0, *output[:place].tolist()
    terms = [(x + 1) * place_weights(64)[i] for i, x in enumerate(known)]
    row = int(sum(terms) % 97)
    change = -RATE * gradient(DRAFT.table[row], tokens[place], probs[place])
    changes.append((row, tuple(change.tolist())))
  return Learned(4, 3, changes=tuple(changes))


@pytest.mark.parametrize(
  ("sampling", "rule"),
  [(Sampling(), "block"), (Sampling(1.0, top_p=0.9), "token")],
  ids=str,
)
def test_the_joint_distribution_of_two_requests_is_the_target_s(sampling, rule):
  paths, found = first_request(sampling, rule)
  distributions = {}  # Of the first output, by draft, on its paths.
  for i, path in enumerate(paths):
    output = tuple(found[0][i].tolist())
    draft = learned(*(x[i] for x in found))
    distribution = distributions.setdefault(draft, {})
    distribution[output] = distribution.get(output, 0.0) + path.probability
  assert len(distributions) > 3, "the draft that serves depends on what was served"
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
  """A program of the second request, for any draft: its table is an argument."""

  def run(table, uniforms):
    drafter = DraftModel(GivenTable(table, DRAFT.vocab_size), SHAPE.size)
    return drive(uniforms, TARGET, drafter, sampling, rule)

  return jax.jit(run)


def second_probs(draft, sampling, rule):
  """The distribution of the second output, at each place of the cells."""
  _, paths = loop_paths((TARGET, draft, rule, SHAPE, LENGTH), sampling)
  program, table = second_request(sampling, rule), jnp.asarray(draft.table)

  def run(uniforms):
    # Repeated up to a power of two: few shapes, so few programs.
    size = 1 << (len(uniforms) - 1).bit_length()
    repeated = jnp.resize(uniforms, (size, *uniforms.shape[1:]))
    return program(table, repeated)[: len(uniforms)]

  return probs_along(paths, run, 2 * SHAPE.size + 1, LENGTH)
