"""Proposals of the copy drafter, by hand and against a search in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.rules.token import Token
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.copy import LONGEST_MATCH, Copy
from tests.hash_model import HashModel, speculation


def propose(inputs, outputs, gamma, match):
  """Returns the proposals of rows as lists, given inputs and outputs so far."""
  width = 2 + max(map(len, outputs))
  # Garbage stands beyond each row's length.
  sequences = np.full((len(outputs), width), 9)
  for row, output in zip(sequences, outputs, strict=True):
    row[: len(output) + 1] = [0, *output]
  drafter = Copy(gamma, match)
  keys = row_keys(jax.random.key(0), len(outputs))
  target = HashModel(0, 16)
  source = jnp.array(inputs)
  spec, state = speculation(
    target, drafter, Token(), Sampling(), keys, width, source=source
  )
  state = state.replace(
    sequences=jnp.asarray(sequences),
    lengths=jnp.array([len(output) + 1 for output in outputs]),
  )
  uniforms = jnp.full((len(outputs), gamma, 1), 0.5)
  proposal, after = jax.jit(lambda *args: drafter.propose(spec, *args))(state, uniforms)
  np.testing.assert_array_equal(after, inputs)
  drafted = zip(proposal.tokens.tolist(), proposal.num_valid.tolist(), strict=True)
  return [tokens[:count] for tokens, count in drafted]


def by_search(inputs, output, gamma, least):
  """Returns the proposal of a search in plain Python."""
  best = 0
  draft = []
  for text in (inputs, output):
    text = [token for token in text if token]
    for place in range(len(text) - 1):
      match = 0
      while match < min(place + 1, len(output), LONGEST_MATCH):
        if text[place - match] != output[-1 - match]:
          break
        match += 1
      if match > best:
        best = match
        draft = text[place + 1 : place + 1 + gamma]
  return draft if best >= least else []


@pytest.mark.parametrize("match", [1, 2, 3])
def test_proposals_equal_a_search_in_python(match):
  rng = np.random.default_rng(match)
  inputs = rng.integers(2, 5, (40, 12))
  inputs[np.arange(12) >= rng.integers(1, 13, (40, 1))] = 0
  outputs = [rng.integers(2, 5, size).tolist() for size in rng.integers(0, 10, 40)]
  expected = [
    by_search(row.tolist(), output, 4, match)
    for row, output in zip(inputs, outputs, strict=True)
  ]
  drafts = propose(inputs, outputs, 4, match)
  assert drafts == expected
  assert {len(draft) for draft in drafts} >= {0, 1, 4}
