"""Blocks that are packed: the same numbers, of no more tokens than count."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import build
from specdec_t5x.core.tree import delayed
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding import widths
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.quantized import Quantized
from specdec_t5x.drafters.sparse import SparseDraft
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.native import library
from specdec_t5x.network.functional import network_for, start_decoding
from specdec_t5x.network.packing import Packing, pack, unpack
from specdec_t5x.policies import Budget
from tests import networks
from tests.drafters.test_quantized import INPUTS, TARGETS, model
from tests.t5x_bridge import tiny

ROOM = 16
# Our own products are the same bit for bit, however many rows there are.
RTOL = 1e-5 if library.problem() else 0


def test_rows_are_packed_side_by_side():
  packing = Packing.of(jnp.array([2, 1, 3]), 7, 4)
  block = jnp.arange(12).reshape(3, 4)
  np.testing.assert_array_equal(pack(packing, block)[:6], [0, 1, 4, 8, 9, 10])
  # What is not packed is its row's last token that is.
  expected = [[0, 1, 1, 1], [4, 4, 4, 4], [8, 9, 10, 10]]
  np.testing.assert_array_equal(unpack(packing, pack(packing, block)), expected)
  assert pack(None, block) is unpack(None, block) is block


def test_the_narrowest_width_holds_the_sum_of_all_drafts():
  assert widths.packed_widths(4, 3) == (6, 8, 12, 16)
  tokens = jnp.zeros((4, 3), jnp.int32)

  def extend(cache, tokens, packing=None):
    """Says in its logits how many tokens were computed."""
    wide = jnp.full((*tokens.shape, 2), float(packing.rows.size if packing else 0))
    return wide, wide, cache

  def score(drafted):
    proposal = Proposal.chain(tokens, None, drafted)
    last = jnp.zeros(4, jnp.int32)
    return widths.score(extend, None, last, proposal, packs=True)[0]

  found = [
    float(score(jnp.array(drafted))[0, 0, 0])
    for drafted in ([0, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0], [3, 2, 1, 0], [3] * 4)
  ]
  assert found == [6, 6, 8, 12, 16]


@pytest.mark.parametrize("kind", TARGETS)
def test_a_packed_block_has_the_numbers_of_a_padded_one(kind):
  network, params = model(kind).network, model(kind).params
  tokens = jax.random.randint(jax.random.key(2), (len(INPUTS), 4), 2, 40)
  counts = jnp.array([2, 4, 1])

  @jax.jit
  def both(tokens):
    extend, cache = start_decoding(network, params, INPUTS, ROOM)
    packing = Packing.of(counts, 8, 4)
    return extend(cache, tokens), extend(cache, tokens, packing=packing)

  padded, packed = both(tokens)
  is_valid = np.arange(4) < counts[:, None]
  of_valid = lambda logits, features, cache: (
    features[is_valid],
    *(x.swapaxes(1, 2)[:, :4][is_valid] for x in (*cache.keys, *cache.values)),
  )
  chex.assert_trees_all_close(of_valid(*packed), of_valid(*padded), rtol=RTOL)
  # The tied projection is XLA's, whose rows depend on their number.
  rtol = 1e-5 if kind == "tied" else RTOL
  np.testing.assert_allclose(*(x[0][is_valid] for x in (packed, padded)), rtol=rtol)


def test_what_can_t_be_packed_or_shared_is_refused():
  target, draft = network_for(tiny.TARGET), network_for(tiny.DRAFT)
  make = lambda drafter, policy: SpeculativeDecoder(
    target, drafter, build.get_rule("traversal"), policy=policy
  )
  with pytest.raises(ValueError, match=r"packs needs single drafts, got a TreeDraft"):
    make(TreeDraft(draft, delayed(0, 2, 1)), Fixed(packs=True))
  for drafter in (Copy(), SparseDraft(draft), TreeDraft(draft, delayed(0, 2, 2))):
    with pytest.raises(ValueError, match="A Budget needs drafts of any length, got"):
      make(drafter, Budget())
  with pytest.raises(ValueError, match="A Budget needs the seconds of iterations, got"):
    networks.decode(
      model("t5"), None, Quantized(), inputs=INPUTS, room=ROOM, policy=Budget()
    )
