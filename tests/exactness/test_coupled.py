"""Coupled draws: speculation gives the tokens of plain sampling.

Properties of plain sampling therefore hold for every draft, rest, policy and tree.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import tuning
from specdec_t5x.core import noise
from specdec_t5x.core.distributions import LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.rules.lenient import Lenient
from specdec_t5x.core.tree import Tree, chain, delayed
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import DecodeState, row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.functional import network_for
from tests import hash_model, networks, ways
from tests.exactness import driving
from tests.hash_model import FIXED, HashModel, speculation
from tests.t5x_bridge import tiny
from tests.test_policies import Alternating
from tests.test_ways import same_tokens
from tests.ways import TARGET

pytestmark = pytest.mark.slow

COUPLED = RULES["coupled"]
SAMPLINGS = {
  "T=1": Sampling(coupled=True),
  "T=0.7": Sampling(0.7, coupled=True),
  "top-k": Sampling(top_k=3, coupled=True),
  "top-p": Sampling(top_p=0.8, coupled=True),
}
ROWS = 500
LENGTH = 8
BY_ROW = CostAware((1.0, 1.35, 1.55, 1.8), 0.6, 1.0, decay=0.5, by_row=True)


def plain(sampling, length=LENGTH, rows=ROWS, target=TARGET):
  keys = row_keys(jax.random.key(0), rows)
  return jax.jit(lambda: hash_model.plain(target, sampling, keys, length))()


def speculate(drafter, sampling, policy=FIXED, length=LENGTH, rows=ROWS, target=TARGET):
  keys = row_keys(jax.random.key(0), rows)
  source = ways.source(rows)

  @jax.jit
  def run():
    spec, state = speculation(
      target, drafter, COUPLED, sampling, keys, length, source=source, policy=policy
    )
    return generate(spec, state)

  return run()


@pytest.mark.parametrize(
  ("policy", "sampling"),
  [
    (Alternating(), "top-k"),
    (BY_ROW, "T=0.7"),
    (Fixed(2), "T=1"),
  ],
  ids=str,
)
def test_policies_and_rests_change_no_output(sampling, policy):
  decoded = speculate(ways.ON_TABLES["draft model"], SAMPLINGS[sampling], policy)
  same_tokens(decoded, plain(SAMPLINGS[sampling]))


def test_a_perfect_draft_is_accepted_in_full():
  """Draft and target share the noise of each place, in the draft's first branch."""
  target = HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  tree = delayed(0, 3, 2)
  length = 4 * (tree.depth + 1)
  drafter = TreeDraft(target, tree)
  decoded = speculate(drafter, SAMPLINGS["T=1"], length=length, target=target)
  np.testing.assert_array_equal(decoded.statistics.target_calls, 4)


def test_a_tree_accepts_more_than_a_chain():
  drafters = [TreeDraft(ways.MIDDLE, delayed(0, k, 3)) for k in (1, 3)]
  narrow, wide = (speculate(drafter, SAMPLINGS["T=1"]) for drafter in drafters)
  assert wide.statistics.target_calls.sum() < 0.9 * narrow.statistics.target_calls.sum()


# ---- Every assignment of a noise with few values. ----

GRID = np.array([0.3, 3.5], np.float32)
FEW = 3
PLACES = 3
ASSIGNMENTS = np.array([*itertools.product(GRID, repeat=FEW)])  # For one place.


@pytest.mark.parametrize(
  ("name", "tree"),
  [("T=1", Tree((0, 0, 1))), ("T=0.7", None), ("top-k", None), ("top-p", chain(2))],
)
def test_every_noise_gives_the_oracle_s_output_with_and_without_a_draft(
  name, tree, monkeypatch
):
  """3 tokens, 3 places and 2 values give 512 noises, one per row."""
  rows = len(ASSIGNMENTS) ** PLACES
  digits = np.stack(np.unravel_index(np.arange(rows), (len(ASSIGNMENTS),) * PLACES), 1)

  def uniforms_of_places(state, count):
    at = state.lengths[:, None] - 1 + jnp.arange(count)
    digit = jnp.take_along_axis(jnp.asarray(digits), at, axis=1, mode="clip")
    return jnp.repeat(digit[..., None] * 2.0**-24, LEVELS, axis=-1)

  def exponentials(uniforms, size):
    assert size == FEW
    return jnp.asarray(ASSIGNMENTS)[(uniforms[..., -1] * 2.0**24).astype(int)]

  monkeypatch.setattr(DecodeState, "uniforms_of_places", uniforms_of_places)
  monkeypatch.setattr(noise, "exponentials", exponentials)
  sampling = SAMPLINGS[name]
  target, draft = (HashModel(seed, vocab_size=FEW) for seed in (5, 6))
  distribution = target.distribution(sampling)
  expected = np.zeros((rows, PLACES), int)
  for row, places in enumerate(digits):
    output = ()
    for place in places:
      if 1 not in output:
        output += (int(np.argmax(distribution(output) / ASSIGNMENTS[place])),)
    expected[row, : len(output)] = output
  decoded = plain(sampling, PLACES, rows, target)
  np.testing.assert_array_equal(decoded.tokens, expected)
  if tree is not None:
    drafter = driving.drafter_of(draft, tree)
    decoded = speculate(drafter, sampling, FIXED, PLACES, rows, target)
    np.testing.assert_array_equal(decoded.tokens, expected)
    assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


# ---- Decoders of networks: tests/test_ways.py has every way to draft. ----

NETWORK = network_for(tiny.config(1, 16, vocab_size=40))


def test_a_coupled_rule_couples_samples_with_and_without_drafts():
  params = {"target": networks.sharp(NETWORK, 0), "draft": networks.sharp(NETWORK, 1)}
  inputs = (2 + jnp.arange(24 * 4) % 38).reshape(24, 4)
  expected = networks.run(Decoder(NETWORK), params, inputs, 24, SAMPLINGS["T=1"])
  assert len(np.unique(expected.tokens, axis=0)) > 12
  decoder = Decoder(NETWORK, DraftModel(NETWORK, 3), COUPLED)
  for each in (decoder, tuning.plain(decoder)):
    same_tokens(networks.run(each, params, inputs, 24, Sampling()), expected)


@pytest.mark.parametrize("rule", [Lenient(0.5), RULES["typical"]])
def test_lossy_rules_are_refused(rule):
  decoder = Decoder(NETWORK, DraftModel(NETWORK, 3), rule)
  with pytest.raises(ValueError, match="need a rule that keeps the target's"):
    decoder.check(SAMPLINGS["T=1"], 24, 1)
