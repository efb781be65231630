"""Whose token stands at each place of an output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import delayed
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.transformer import Transformer
from specdec_t5x.policies import CostAware
from specdec_t5x.trace import places
from specdec_t5x.trace.places import ACCEPTED, OWN, RECOVERED, KeepPlaces
from tests import networks
from tests.hash_model import HashModel, speculation
from tests.t5x_bridge import tiny

LENGTH, GAMMA, VOCAB = 12, 3, 4
AT_ONE = Sampling(1.0)


def pair(seed):
  """Alike, so that some drafted tokens stand."""
  target = HashModel(seed, VOCAB, eos_bias=-1.0)
  return target, target if seed == 0 else HashModel(seed + 50, VOCAB, scale=0.3)


def decoded(target, drafter, sampling=GREEDY, rows=1):
  keys = row_keys(jax.random.key(0), rows)
  rule = RULES["traversal"]
  spec, state = speculation(target, drafter, rule, sampling, keys, LENGTH)
  return jax.jit(lambda: generate(spec, state, observe=KeepPlaces()))()


def expected(target, draft):
  """Of a greedy decode, by hand: drafts of GAMMA tokens, and one of the target."""
  p, q = target.distribution(AT_ONE), draft.distribution(AT_ONE)
  output, found, drafted = [], [], 0
  while len(output) < LENGTH and 1 not in output:
    token, guess = (int(x(tuple(output)).argmax()) for x in (p, q))
    # The last token of the room nobody drafts for.
    may = drafted < GAMMA and len(output) < LENGTH - 1
    found.append((ACCEPTED if guess == token else RECOVERED) if may else OWN)
    drafted = drafted + 1 if found[-1] == ACCEPTED else 0
    output.append(token)
  return output, found


@pytest.mark.parametrize("seed", range(8))
def test_greedy_places_are_those_reckoned_by_hand(seed):
  target, draft = pair(seed)
  found = decoded(target, DraftModel(draft, GAMMA))
  output, by_hand = expected(target, draft)
  rest = [0] * (LENGTH - len(output))
  assert found.tokens[0].tolist() == output + rest
  assert found.observed[0].tolist() == by_hand + rest


@pytest.mark.parametrize("is_tree", [False, True])
def test_sampled_places_are_as_many_as_were_counted(is_tree):
  target, draft = pair(3)
  tree = TreeDraft(draft, delayed(1, 2, GAMMA))
  found = decoded(target, tree if is_tree else DraftModel(draft, GAMMA), AT_ONE, 64)
  assert_counted(found)


def assert_counted(found):
  kept, info = np.asarray(found.observed), found.statistics
  count = lambda kind: (kept == kind).sum(axis=1)
  np.testing.assert_array_equal(count(ACCEPTED), info.accepted)
  rejected = info.acceptance_positions - info.accepted
  np.testing.assert_array_equal(count(RECOVERED), rejected)
  assert info.accepted.sum() > 0 < rejected.sum()
  beyond = np.arange(LENGTH) >= np.asarray(info.emitted)[:, None]
  assert not kept[beyond].any()


@pytest.mark.parametrize("slots", [0, 2])
def test_rows_that_rest_and_take_turns_have_their_own(slots):
  network = Transformer(tiny.DRAFT)
  inputs, keys = jnp.ones((4, 3), jnp.int32), row_keys(jax.random.key(0), 4)
  target, draft = (networks.initialize(network, inputs, i)["params"] for i in (0, 1))
  decoder = SpeculativeDecoder(
    network,
    DraftModel(network, 2),
    policy=CostAware((1.0, 1.7, 1.8), prior_weight=1.0),
    slots=slots,
    observer=KeepPlaces(),
  )
  given = {"target": target, "draft": draft}, inputs, keys, AT_ONE, LENGTH, 1
  assert_counted(jax.jit(lambda: decoder.decode(*given))())


def _one_on(gained):
  return lambda kept, first, info: gained(kept, first + 1, info)


def _counted_twice(gained):
  return lambda kept, first, info: gained(
    kept, first, info.replace(acceptance_positions=info.acceptance_positions + 1)
  )


@pytest.mark.parametrize("fault", [_one_on, _counted_twice])
def test_a_planted_fault_fails(fault, monkeypatch):
  monkeypatch.setattr(places, "gained", fault(places.gained))
  with pytest.raises(AssertionError):
    test_greedy_places_are_those_reckoned_by_hand(3)


def test_several_decodes_are_refused():
  with pytest.raises(ValueError, match="NUM_DECODES must be 1"):
    KeepPlaces().check(None, 3)
