"""What the copy draft proposes, by hand and beside a search in Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.drafters.copy import LONGEST_MATCH, CopyDraft


def propose(inputs, outputs, gamma=3, shortest_match=1, size=16):
  """Proposals of rows with these inputs and outputs so far, as lists."""
  width = 2 + max(map(len, outputs))
  # Beyond each row's length stands garbage.
  sequences = np.full((len(outputs), width), 9)
  for row, output in zip(sequences, outputs, strict=True):
    row[: len(output) + 1] = [0, *output]
  drafter = CopyDraft(gamma, size, shortest_match)
  lengths = jnp.array([len(output) + 1 for output in outputs])
  uniforms = jnp.full((len(outputs), gamma, 1), 0.5)
  propose = jax.jit(drafter.propose)
  proposal, state = propose(
    jnp.array(inputs), jnp.asarray(sequences), lengths, uniforms
  )
  np.testing.assert_array_equal(state, inputs)
  drafted = zip(proposal.tokens.tolist(), proposal.num_valid.tolist(), strict=True)
  return [tokens[:count] for tokens, count in drafted], proposal


def by_search(inputs, output, gamma, shortest_match):
  """The same in plain Python."""
  best, draft = 0, []
  for text in (inputs, output):
    text = [token for token in text if token]
    for place in range(len(text) - 1):
      match = 0
      while match < min(place + 1, len(output), LONGEST_MATCH):
        if text[place - match] != output[-1 - match]:
          break
        match += 1
      if match > best:
        best, draft = match, text[place + 1 : place + 1 + gamma]
  return draft if best >= shortest_match else []


def test_by_hand():
  inputs = [[5, 6, 7, 8, 5, 9, 1], [5, 6, 7, 1, 0, 0, 0]]
  # The first 5 of two; the place after the longer match; the end of the input.
  assert propose(inputs, [[5], [6]])[0] == [[6, 7, 8], [7, 1]]
  assert propose(inputs, [[8, 5], [7]])[0] == [[9, 1], [1]]
  # What the output has had itself, up to its end.
  assert propose(inputs, [[3, 4, 3], [2, 2]])[0] == [[4, 3], [2]]
  # Nothing: unknown tokens, an empty output, a match that is too short.
  assert propose(inputs, [[4], []])[0] == [[], []]
  assert propose(inputs, [[2, 5], [5, 6]], shortest_match=2)[0] == [[], [7, 1]]


@pytest.mark.parametrize("shortest_match", [1, 2, 3])
def test_it_finds_what_a_search_in_python_finds(shortest_match):
  rng = np.random.default_rng(shortest_match)
  inputs = rng.integers(2, 5, (40, 12))
  inputs[np.arange(12) >= rng.integers(1, 13, (40, 1))] = 0
  outputs = [rng.integers(2, 5, size).tolist() for size in rng.integers(0, 10, 40)]
  expected = [
    by_search(row.tolist(), output, 4, shortest_match)
    for row, output in zip(inputs, outputs, strict=True)
  ]
  drafts, _ = propose(inputs, outputs, 4, shortest_match)
  assert drafts == expected
  assert {len(draft) for draft in drafts} >= {0, 1, 4}


def test_the_law_is_one_at_each_token():
  _, proposal = propose([[5, 6, 7, 8, 5, 9, 1]], [[5]])
  np.testing.assert_array_equal(proposal.draft_probs[0], np.eye(16)[[6, 7, 8]])


def test_a_row_does_not_depend_on_its_neighbours():
  inputs, outputs = [[5, 6, 7, 1], [8, 6, 9, 1]], [[5], [6, 8, 6, 6]]
  together, _ = propose(inputs, outputs)
  assert together == [
    propose([i], [o])[0][0] for i, o in zip(inputs, outputs, strict=True)
  ]


@pytest.mark.parametrize("shortest_match", [0, LONGEST_MATCH + 1])
def test_a_match_out_of_range_is_refused(shortest_match):
  with pytest.raises(ValueError, match="COPY_MATCH must be from 1 to"):
    CopyDraft(3, 16, shortest_match)
