"""Every way to draft gives plain decoding's outputs: around rests, and in turns.

Greedy outputs and coupled samples are compared token for token. Coupled samples have
plain sampling's noise at each place, so a sample that depends on a draft, a rest, or
another row would be another token.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import build
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.decoding.generate import generate
from specdec_t5x.decoding.policy import Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.network.functional import network_for
from specdec_t5x.policies import CostAware
from specdec_t5x.ways import CONTRIB, WAYS
from tests import hash_model, networks, ways
from tests.decoding.test_generate import assert_follows
from tests.hash_model import sequence_probs, speculation
from tests.real_data import ROOT
from tests.test_policies import Alternating, watch

COUPLED = Sampling(coupled=True)


def resting(drafter):
  """A policy that rests: in turns with drafts, or after two drafts for good."""
  return Alternating() if drafter.resumes else Alternating(drafts=2)


def same_tokens(found, expected):
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


# ---- On table models. ----

ROWS, LENGTH = 200, 12


@functools.cache
def plain(sampling, rows=ROWS):
  keys = row_keys(jax.random.key(0), rows)
  return jax.jit(lambda: hash_model.plain(ways.TARGET, sampling, keys, LENGTH))()


def decode(drafter, rule, sampling, rows=ROWS, length=LENGTH, loop=jax.lax.while_loop):
  """Decodes from rows of one source, with rests in between."""
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
def test_coupled_samples_are_plain_sampling_s_around_rests(name):
  drafter = ways.ON_TABLES[name]
  decoded = jax.jit(lambda: decode(drafter, "coupled", COUPLED))()
  same_tokens(decoded, plain(COUPLED))
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


@pytest.mark.parametrize(
  "name",
  ["tree", "candidates", "heads in a tree", "cascade that ends early", "three levels"],
)
def test_greedy_outputs_are_plain_decoding_s_around_rests(name):
  """Other ways decode greedily below, or by commands of the documentation."""
  drafter, rows = ways.ON_TABLES[name], 2
  decoded = jax.jit(lambda: decode(drafter, "coupled", GREEDY, rows))()
  same_tokens(decoded, plain(GREEDY, rows))
  assert decoded.statistics.drafted.sum() > 0


@pytest.mark.parametrize("name", ["draft model", "cascade", "medusa"])
def test_rests_are_in_between_or_behind_all_drafts(name):
  drafter = ways.ON_TABLES[name]
  decoded, kinds = watch(
    lambda loop: decode(drafter, "traversal", GREEDY, 2, loop=loop)
  )
  same_tokens(decoded, plain(GREEDY, 2))
  rests = [kind == "rest" for kind in kinds]
  assert sum(rests) > 1
  # What does not go on after a rest has drafted before all rests.
  assert (rests == sorted(rests)) == (not drafter.resumes)


def test_samples_of_a_resting_batch_follow_the_enumerated_distribution():
  """By chi-squared at level 0.001; the draws are the same in each run."""
  drafter, length = ways.ON_TABLES["draft model"], 5
  decoded = jax.jit(lambda: decode(drafter, "token", Sampling(), 20_000, length))()
  expected = sequence_probs(ways.TARGET, Sampling(), length)
  assert_follows(np.asarray(decoded.tokens), expected)
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


# ---- On tiny networks. ----

INPUTS = jnp.array(
  [[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1], [2, 1, 0, 0], [3, 9, 9, 1]]
)
ROOM = 10


def run(way, sampling, rule="token", policy=None, slots=0):
  """Decodes the inputs by a way to draft, or plainly where it is None."""
  found = ways.models()
  drafter = way and way.drafter(ways.networks_of(found))
  drafts = way and {name: found[model] for name, model in way.models.items()}
  words = {} if way is None else {"rule": RULES[rule], "policy": policy}
  words |= {"inputs": INPUTS, "room": ROOM, "sampling": sampling, "slots": slots}
  target = build.Model(network_for(ways.CONFIGS[0]), ways.drawn(ways.CONFIGS[0]))
  return networks.decode(target, drafts or None, drafter, **words)


@functools.cache
def plain_run(sampling):
  decoded = run(None, sampling)
  assert len(set(decoded.statistics.emitted.tolist())) > 2
  assert len(np.unique(decoded.tokens)) > 5
  return decoded


# Other policies, lengths or roundings of a way, and heads like Medusa's.
SIMILAR = {"draft model by name", "auto", "quantized by name", "shared encoder"}
SIMILAR |= {"blockwise"}
# Ways that rest on tables above, but for one of each structure.
SIMILAR |= ways.ON_TABLES.keys() - {"draft model", "distinct tree", "medusa", "cascade"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in ways.ON_NETWORKS if x not in SIMILAR])
def test_networks_give_coupled_samples_around_rests_and_in_turns(name):
  """Two rows take the five inputs in turns."""
  way = ways.ON_NETWORKS[name]
  drafter = way.drafter(ways.networks_of(ways.models()))
  decoded = run(way, COUPLED, "coupled", resting(drafter), slots=2)
  same_tokens(decoded, plain_run(COUPLED))
  assert decoded.statistics.drafted.sum() > 0


# Ways that no page of the documentation decodes, and a chain of each kind.
GREEDILY = ("auto", "copy", "blockwise", "biased", "trimmed eagle", "heads in a tree")
GREEDILY += ("quantized by name", "shared encoder in a tree")


# A row drafts three tokens, one after a rejection, and none after two.
VARYING = CostAware((1.0, 1.3, 1.5, 1.7), prior_weight=1.0, decay=0.8, by_row=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", GREEDILY)
def test_networks_give_greedy_outputs(name):
  way = ways.ON_NETWORKS[name]
  policy = VARYING if name == "auto" else Fixed()
  decoded = run(way, GREEDY, way.rule, policy)
  same_tokens(decoded, plain_run(GREEDY))
  assert decoded.statistics.drafted.sum() > 0


# ---- The table itself. ----


def test_every_record_of_the_table_is_tested_and_has_its_file_and_its_page():
  kinds = {type(drafter) for drafter in ways.ON_TABLES.values()}
  found = ways.networks_of(ways.models())
  kinds |= {type(way.drafter(found)) for way in ways.ON_NETWORKS.values()}
  for record in WAYS.values():
    assert any(issubclass(kind, record.kind) for kind in kinds), record.name
    assert (ROOT / "docs" / "methods" / f"{record.page}.md").exists(), record.name
    assert not record.gin or (ROOT / "configs" / record.gin).exists(), record.name
    is_contrib = record.kind.__module__.startswith("specdec_t5x.contrib.")
    assert is_contrib == (record.tier == CONTRIB), record.name
  # No drafter of the package is without a record but the bases of several kinds.
  kinds -= {record.kind for record in WAYS.values()}
  assert not kinds


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.tiny])
def test_a_record_s_tiny_drafter_drafts_for_a_tiny_network(name):
  record, found = WAYS[name], ways.networks_of(ways.models())
  network = found[{"ngram": "ngrams", "eagle": "eagle"}.get(name, "draft")]
  drafter = record.make({"draft": network}, **record.tiny)
  decoder = SpeculativeDecoder(network_for(ways.CONFIGS[0]), drafter)
  assert decoder.drafter.tree.size == record.tiny["gamma"]


def test_a_knob_s_check_is_its_class_s():
  for record in WAYS.values():
    for field, (default, knob) in record.knobs.items():
      assert knob.check is None or knob.check.accepts(default), (record.name, field)
      assert knob.about


def test_every_gin_file_of_a_drafter_is_decoded():
  files = {file for way in ways.IN_GIN.values() for file in way.files}
  configs = ROOT / "configs"
  known = {f"drafters/{path.stem}" for path in configs.glob("drafters/*.gin")}
  known |= {f"contrib/{path.stem}" for path in configs.glob("contrib/*.gin")}
  moved = {name for name in known if is_moved(configs / f"{name}.gin")}
  # These have commands of their own.
  apart = {"link", "other_vocabulary", "beam", "beam_baseline", "online"}
  assert known - moved - files == {f"contrib/{name}" for name in apart}


def is_moved(path):
  """Whether a gin file includes the file that it moved to, and says nothing more."""
  first, second = path.read_text().splitlines()[:2]
  return first.startswith("# Moved to ") and second.startswith("include ")
