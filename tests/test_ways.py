"""Every way to draft gives plain decoding's outputs, with rests and in turns.

Greedy outputs and coupled samples are compared token for token. Coupled samples have
plain sampling's noise at every place, so a sample that depends on a draft, a rest or
another row would be a different token.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.knobs import knobs_of
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.functional import network_for
from specdec_t5x.ways import WAYS, Model
from tests import hash_model, networks, ways
from tests.decoding.test_generate import assert_follows
from tests.hash_model import sequence_probs, speculation
from tests.test_policies import Alternating, watch

pytestmark = pytest.mark.slow

COUPLED = Sampling(coupled=True)


def resting(drafter):
  """Returns a policy that rests: in turns with drafts, or for good after two drafts."""
  return Alternating() if drafter.traits.resumes else Alternating(drafts=2)


def same_tokens(found, expected):
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


# ---- Table models ----

ROWS, LENGTH = 200, 12


@functools.cache
def plain(sampling, rows=ROWS):
  keys = row_keys(jax.random.key(0), rows)
  return jax.jit(lambda: hash_model.plain(ways.TARGET, sampling, keys, LENGTH))()


def decode(drafter, rule, sampling, rows=ROWS, length=LENGTH, loop=jax.lax.while_loop):
  """Decodes rows with equal sources, with rests in between."""
  keys = row_keys(jax.random.key(0), rows)
  spec, state = speculation(
    ways.TARGET,
    drafter,
    RULES[rule],
    sampling,
    keys,
    length,
    source=ways.source(rows),
    policy=resting(drafter),
  )
  return generate(spec, state, loop)


@pytest.mark.parametrize("name", ways.ON_TABLES)
def test_coupled_samples_equal_plain_sampling_s_with_rests(name):
  drafter = ways.ON_TABLES[name]
  decoded = jax.jit(lambda: decode(drafter, "coupled", COUPLED))()
  same_tokens(decoded, plain(COUPLED))
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


@pytest.mark.parametrize(
  "name",
  ["tree", "candidates", "heads in a tree", "cascade that ends early", "three levels"],
)
def test_greedy_outputs_equal_plain_decoding_s_with_rests(name):
  """Other ways decode greedily below, or in commands of the documentation."""
  drafter = ways.ON_TABLES[name]
  rows = 2
  decoded = jax.jit(lambda: decode(drafter, "coupled", GREEDY, rows))()
  same_tokens(decoded, plain(GREEDY, rows))
  assert decoded.statistics.drafted.sum() > 0


@pytest.mark.parametrize("name", ["draft model", "cascade", "medusa"])
def test_rests_are_between_drafts_or_after_the_last_draft(name):
  drafter = ways.ON_TABLES[name]
  decoded, kinds = watch(
    lambda loop: decode(drafter, "traversal", GREEDY, 2, loop=loop)
  )
  same_tokens(decoded, plain(GREEDY, 2))
  rests = [kind == "rest" for kind in kinds]
  assert sum(rests) > 1
  # A drafter that can't continue after a rest drafts before the first rest.
  assert (rests == sorted(rests)) == (not drafter.traits.resumes)


def test_samples_of_a_resting_batch_follow_the_enumerated_distribution():
  """A chi-squared test at level 0.001, with the same draws in every run."""
  drafter = ways.ON_TABLES["draft model"]
  length = 5
  decoded = jax.jit(lambda: decode(drafter, "token", Sampling(), 20_000, length))()
  expected = sequence_probs(ways.TARGET, Sampling(), length)
  assert_follows(np.asarray(decoded.tokens), expected)
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


# ---- Tiny networks ----

INPUTS = jnp.array(
  [[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1], [2, 1, 0, 0], [3, 9, 9, 1]]
)
ROOM = 10


def run(way, sampling, rule="token", policy=None, slots=0):
  """Decodes the inputs with a way to draft, or plainly if the way is None."""
  found = ways.models()
  drafter = way and way.drafter(ways.networks_of(found))
  drafts = way and {name: found[model] for name, model in way.models.items()}
  words = {} if way is None else {"rule": RULES[rule], "policy": policy}
  words |= {"inputs": INPUTS, "room": ROOM, "sampling": sampling, "slots": slots}
  target = Model(network_for(ways.CONFIGS[0]), ways.drawn(ways.CONFIGS[0]))
  return networks.decode(target, drafts or None, drafter, **words)


@functools.cache
def plain_run(sampling):
  decoded = run(None, sampling)
  assert len(set(decoded.statistics.emitted.tolist())) > 2
  assert len(np.unique(decoded.tokens)) > 5
  return decoded


# Ways with only a different policy, length or rounding, and heads like Medusa's.
SIMILAR = {"draft model by name", "auto", "quantized by name", "shared encoder"}
SIMILAR |= {"blockwise"}
# Ways that rest on tables above, except for a way per structure.
SIMILAR |= ways.ON_TABLES.keys() - {"draft model", "distinct tree", "medusa", "cascade"}


@pytest.mark.parametrize("name", [x for x in ways.ON_NETWORKS if x not in SIMILAR])
def test_networks_give_coupled_samples_with_rests_and_in_turns(name):
  """Two rows take the five inputs in turns."""
  way = ways.ON_NETWORKS[name]
  drafter = way.drafter(ways.networks_of(ways.models()))
  decoded = run(way, COUPLED, "coupled", resting(drafter), slots=2)
  same_tokens(decoded, plain_run(COUPLED))
  assert decoded.statistics.drafted.sum() > 0


# Ways that no page of the documentation decodes, and a chain of every kind.
GREEDILY = ("auto", "copy", "blockwise", "parallel", "trimmed eagle", "heads in a tree")
GREEDILY += ("quantized by name", "shared encoder in a tree")


# A row drafts three tokens, one token after a rejection, and no token after two.
VARYING = CostAware((1.0, 1.3, 1.5, 1.7), prior_weight=1.0, decay=0.8, by_row=True)


@pytest.mark.parametrize("name", GREEDILY)
def test_networks_give_greedy_outputs(name):
  way = ways.ON_NETWORKS[name]
  policy = VARYING if name == "auto" else Fixed()
  decoded = run(way, GREEDY, way.rule, policy)
  same_tokens(decoded, plain_run(GREEDY))
  assert decoded.statistics.drafted.sum() > 0


# ---- The table ----


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.tiny])
def test_a_record_s_tiny_drafter_drafts_for_a_tiny_network(name):
  record = WAYS[name]
  found = ways.networks_of(ways.models())
  network = found[{"ngram": "ngrams", "eagle": "eagle"}.get(name, "draft")]
  drafter = record.make(network, **record.tiny)
  decoder = Decoder(network_for(ways.CONFIGS[0]), drafter)
  assert decoder.drafter.tree.size == record.tiny["gamma"]


def test_a_knob_s_check_accepts_the_default():
  for record in WAYS.values():
    for field, (default, knob) in knobs_of(record.kind).items():
      assert knob.check is None or knob.check.accepts(default), (record.name, field)
      assert knob.about
