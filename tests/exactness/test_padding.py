"""Drafts with a different number of vocabulary rows keep the target's distribution."""

import dataclasses
import functools

import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import chain, delayed
from specdec_t5x.network.functional import resized
from tests.exactness.distributions import adjusted
from tests.exactness.driving import assert_the_loop_is_exact
from tests.hash_model import MODULUS, HashModel, place_weights

TARGET = HashModel(seed=1, vocab_size=4, eos_bias=-0.5)


@dataclasses.dataclass(frozen=True)
class Padded(HashModel):
  """A draft with a different number of rows, resized to the target's like a decoder."""

  def extend(self, *args, **words):
    logits, features, cache = super().extend(*args, **words)
    return resized(logits, TARGET.vocab_size), features, cache

  def distribution(self, sampling):
    """The distribution over the target's tokens, in float64."""
    table = self.table.astype(float)
    weights = place_weights(64)

    @functools.cache
    def distribution(output):
      terms = [(token + 1) * weights[i] for i, token in enumerate((0, *output))]
      row = table[sum(terms) % MODULUS][: TARGET.vocab_size]
      lacking = np.full(TARGET.vocab_size - row.size, -np.inf)
      return adjusted(np.concatenate([row, lacking]), sampling)

    return distribution


@pytest.mark.parametrize("rows", [2, 3, 5, 9])
@pytest.mark.parametrize(
  ("rule", "tree", "room", "sampling"),
  [
    ("token", chain(2), 3, Sampling()),
    ("block", chain(2), 3, Sampling(0.7)),
    ("recursive", delayed(0, 2, 1), 3, Sampling(top_p=0.9)),
    ("token", chain(2), 3, GREEDY),
  ],
  ids=["token", "block", "recursive", "greedy"],
)
def test_padded_drafts_keep_the_target_s_distribution(rows, rule, tree, room, sampling):
  draft = Padded(seed=2, vocab_size=rows, eos_bias=-0.5)
  assert_the_loop_is_exact((TARGET, draft, rule, tree, room), sampling)


def test_a_draft_s_distribution_is_renormalised_over_the_target_s_tokens():
  for rows in (2, 9):
    draft = Padded(seed=2, vocab_size=rows)
    q = draft.distribution(Sampling())((1, 2))
    assert q.size == TARGET.vocab_size
    assert q.sum() == pytest.approx(1)
    assert (q[min(rows, 4) :] == 0).all()
    full = HashModel(seed=2, vocab_size=rows).distribution(Sampling())((1, 2))
    size = min(rows, 4)
    np.testing.assert_allclose(q[:size], full[:size] / full[:size].sum())
