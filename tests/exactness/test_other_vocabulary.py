"""Drafts of another vocabulary keep the target's distribution."""

import numpy as np
import pytest

from specdec_t5x.contrib.shared_tokens import SharedTokens
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.tree import chain
from tests.exactness.driving import assert_the_loop_is_exact
from tests.exactness.test_adaptive import TURNS
from tests.exactness.test_loop import SMALL_TARGET, TARGET
from tests.hash_model import HashModel, OtherHash

# EOS and 2 are shared under different ids. Token 3 is two tokens of the draft. Padding
# is no token of the draft. The target has no token for the draft's 5.
IDS = [-1, 1, 4, -1]
PIECES = [[0, 0], [1, 0], [4, 0], [3, 2]]
TOKENS = SharedTokens(np.array(IDS, np.int32), np.array(PIECES, np.int32))
DRAFT = OtherHash(HashModel(2, vocab_size=6, eos_bias=-0.5), TOKENS)
# All tokens but padding are shared, so more drafts are longer than one token.
ALL = SharedTokens(
  np.array([-1, 1, 4, 2], np.int32), np.array([[0], [1], [4], [2]], np.int32)
)


def test_the_loop_keeps_the_target_s_distribution():
  """All tokens are shared here; `checks` has `DRAFT`."""
  setting = (TARGET, OtherHash(DRAFT.model, ALL), "block", chain(2), 4)
  assert_the_loop_is_exact(setting, Sampling(1.0, top_k=2))


@pytest.mark.slow
def test_alternating_drafts_and_plain_turns_keep_the_distribution():
  tokens = SharedTokens(ALL.ids[:3], ALL.pieces[:3])
  draft = OtherHash(DRAFT.model, tokens)
  setting = (SMALL_TARGET, draft, "token", chain(3), 6, "independent", TURNS)
  assert_the_loop_is_exact(setting, Sampling())
