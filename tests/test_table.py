"""The properties that all ways to draft share, driven by tests/table.py.

Coupled samples have plain sampling's noise at every place. A sample that depends on a
draft, a rest, a refilled row or a neighbour would therefore be a different token.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x import Model
from specdec_t5x.core.distributions import GREEDY, LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import delayed
from specdec_t5x.decoding.contracts import decisions_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.policies import Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.functional import network_for
from specdec_t5x.policies import CostAware
from specdec_t5x.ways import WAYS
from tests import hash_model, networks, table
from tests.decoding.test_generate import assert_follows, output_lengths
from tests.hash_model import HashModel, sequence_probs, speculation
from tests.test_policies import Alternating, watch

COUPLED = Sampling(coupled=True)
# A row per kind of state: a draft model's cache, a tree's, features, and two levels.
QUICK = ("draft model", "distinct tree", "medusa", "cascade")


def each(names, quick=()):
  """Returns a parameter per row; rows that are not quick are slow tests."""
  return [
    name if name in quick else pytest.param(name, marks=pytest.mark.slow)
    for name in names
  ]


def resting(drafter):
  """Returns a policy that rests: in turns with drafts, or for good after two drafts."""
  return Alternating() if drafter.traits.resumes else Alternating(drafts=2)


def same_tokens(found, expected):
  np.testing.assert_array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


# ---- Table models. ----

LENGTH = 12
ROWS = 200
KEYS = row_keys(jax.random.key(0), ROWS)


@functools.cache
def plain(sampling, rows=ROWS):
  return jax.jit(
    lambda: hash_model.plain(table.TARGET, sampling, KEYS[:rows], LENGTH)
  )()


def drafter_of(name):
  return table.ROWS[name].drafter(table.TABLES)


def started(drafter, rule, sampling, keys, policy=hash_model.FIXED, **given):
  """Returns how table models decode rows with equal sources, and the first state."""
  given = {"target": table.TARGET, "max_length": LENGTH} | given
  source = table.source(len(keys))
  return speculation(
    drafter=drafter,
    rule=RULES[rule],
    sampling=sampling,
    keys=keys,
    source=source,
    policy=policy,
    **given,
  )


def decode(*how, **given):
  """Decodes with the arguments of `started` in a compiled loop."""
  return jax.jit(lambda: generate(*started(*how, **given)))()


@pytest.mark.parametrize("name", each(table.ON_TABLES, QUICK))
def test_coupled_samples_equal_plain_sampling_s_with_rests(name):
  drafter = drafter_of(name)
  decoded = decode(drafter, "coupled", COUPLED, KEYS, resting(drafter))
  same_tokens(decoded, plain(COUPLED))
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


BY_ROW = CostAware((1.0, 1.35, 1.55, 1.8), 0.6, 1.0, decay=0.5, by_row=True)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("policy", "sampling"),
  [
    (Alternating(), Sampling(top_k=3, coupled=True)),
    (BY_ROW, Sampling(0.7, coupled=True)),
    (Fixed(2), COUPLED),
  ],
  ids=["top-k", "T=0.7", "T=1"],
)
def test_policies_change_no_coupled_sample(sampling, policy):
  decoded = decode(drafter_of("draft model"), "coupled", sampling, KEYS, policy)
  same_tokens(decoded, plain(sampling))


@pytest.mark.slow
def test_a_perfect_draft_is_accepted_in_full():
  """Draft and target share the noise of each place, in the draft's first branch."""
  target = HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  drafter = TreeDraft(target, delayed(0, 3, 2))
  decoded = decode(drafter, "coupled", COUPLED, KEYS, target=target)
  np.testing.assert_array_equal(decoded.statistics.target_calls, LENGTH // 3)


@pytest.mark.parametrize("name", each(table.ON_TABLES, QUICK))
def test_samples_have_statistics_and_depend_on_no_other_row(name):
  """The rule is the row's rule; five rows are decoded again among copies."""
  rule = table.ROWS[name].rule
  drafter = drafter_of(name)
  run = jax.jit(lambda keys: generate(*started(drafter, rule, Sampling(), keys)))
  found = run(KEYS)
  few = run(jnp.tile(KEYS[:5], ROWS // 5))
  assert len(np.unique(found.tokens, axis=0)) > 50
  np.testing.assert_array_equal(found.tokens[:5], few.tokens[:5])
  info = found.statistics
  np.testing.assert_array_equal(info.emitted, output_lengths(np.asarray(found.tokens)))
  np.testing.assert_allclose(info.log_prob, found.scores, rtol=1e-5)
  # Each call adds a token of the target, unless the draft ended the output.
  surplus = np.asarray(info.accepted + info.target_calls - info.emitted)
  assert set(surplus) == {0, 1}
  assert (info.accepted <= info.acceptance_positions).all()
  assert (info.acceptance_positions <= info.drafted).all()
  assert 0 < info.accepted.sum() < info.drafted.sum()
  if RULES[rule].alpha_is_mass and drafter.tree.is_chain:
    # The estimates of alpha agree: accepted / tried and sum of min(p, q) / tried.
    tried = info.acceptance_positions.sum()
    alphas = info.accepted.sum() / tried, info.acceptance_mass.sum() / tried
    assert abs(alphas[0] - alphas[1]) < 4 * np.sqrt(0.25 / tried)


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  ["tree", "candidates", "heads in a tree", "cascade that ends early", "three levels"],
)
def test_greedy_outputs_equal_plain_decoding_s_with_rests(name):
  """Other ways decode greedily below, or in commands of the documentation."""
  drafter = drafter_of(name)
  decoded = decode(drafter, "coupled", GREEDY, KEYS[:2], resting(drafter))
  same_tokens(decoded, plain(GREEDY, 2))
  assert decoded.statistics.drafted.sum() > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["draft model", "cascade", "medusa"])
def test_rests_are_between_drafts_or_after_the_last_draft(name):
  drafter = drafter_of(name)
  ctx, state = started(drafter, "traversal", GREEDY, KEYS[:2], resting(drafter))
  decoded, kinds = watch(lambda loop: generate(ctx, state, loop))
  same_tokens(decoded, plain(GREEDY, 2))
  rests = [kind == "rest" for kind in kinds]
  assert sum(rests) > 1
  # A drafter that can't continue after a rest drafts before the first rest.
  assert (rests == sorted(rests)) == (not drafter.traits.resumes)


@pytest.mark.slow
def test_samples_of_a_resting_batch_follow_the_enumerated_distribution():
  """A chi-squared test at level 0.001, with the same draws in every run."""
  keys = row_keys(jax.random.key(0), 20_000)
  drafter = drafter_of("draft model")
  decoded = decode(drafter, "token", Sampling(), keys, Alternating(), max_length=5)
  expected = sequence_probs(table.TARGET, Sampling(), 5)
  assert_follows(np.asarray(decoded.tokens), expected)
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


# ---- Tiny networks. ----

INPUTS = jnp.array(
  [[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1], [2, 1, 0, 0], [3, 9, 9, 1]]
)
ROOM = 10


def run(name, sampling, slots=0, **words):
  """Decodes the inputs with a row's drafter, or plainly without a name."""
  config = table.CONFIGS[0]
  target = Model(network_for(config), table.drawn(config))
  drafter, drafts = None, {}
  if name:
    row, found = table.ROWS[name], table.models()
    drafter = row.of_networks(found)
    drafts = {own: found[model] for own, model in row.networks.items()}
    words = {"policy": resting(drafter), **words}
  words |= {"inputs": INPUTS, "room": ROOM, "sampling": sampling, "slots": slots}
  return networks.decode(target, drafts or None, drafter, **words)


@functools.cache
def plain_run(sampling):
  decoded = run(None, sampling)
  assert len(set(decoded.statistics.emitted.tolist())) > 2
  assert len(np.unique(decoded.tokens)) > 5
  return decoded


# Ways with only a different policy, length or rounding, and heads like Medusa's.
SIMILAR = {"draft model by name", "auto", "quantized by name", "shared encoder"}
SIMILAR |= {"ngram by name", "blockwise"}
# Ways that rest on tables above, except for a way per structure.
SIMILAR |= table.ON_TABLES.keys() - set(QUICK)


@pytest.mark.parametrize(
  "name", each([x for x in table.ON_NETWORKS if x not in SIMILAR], ["draft model"])
)
def test_networks_give_coupled_samples_with_rests_and_in_turns(name):
  """Two rows take the five inputs in turns."""
  decoded = run(name, COUPLED, slots=2, rule="coupled")
  same_tokens(decoded, plain_run(COUPLED))
  assert decoded.statistics.drafted.sum() > 0


# Ways that no page of the documentation decodes, and a chain of every kind.
GREEDILY = ("auto", "copy", "blockwise", "parallel", "trimmed eagle", "heads in a tree")
GREEDILY += ("quantized by name", "shared encoder in a tree")
# A row drafts three tokens, one token after a rejection, and no token after two.
VARYING = CostAware((1.0, 1.3, 1.5, 1.7), prior_weight=1.0, decay=0.8, by_row=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", GREEDILY)
def test_networks_give_greedy_outputs(name):
  policy = VARYING if name == "auto" else Fixed()
  decoded = run(name, GREEDY, rule=table.ROWS[name].rule, policy=policy)
  same_tokens(decoded, plain_run(GREEDY))
  assert decoded.statistics.drafted.sum() > 0


@pytest.mark.slow
def test_a_coupled_rule_couples_samples_with_and_without_drafts():
  network = network_for(table.CONFIGS[0])
  params = {"target": table.drawn(network.config)}
  rule = RULES["coupled"]
  plain_decoder = Decoder(network, rule=rule)
  found = networks.run(plain_decoder, params, INPUTS, ROOM, Sampling())
  same_tokens(found, plain_run(COUPLED))
  same_tokens(run("draft model", Sampling(), rule="coupled"), plain_run(COUPLED))


# ---- Uniforms: one per decision, and none twice. ----


def drafted_shape(name, drafter, count):
  """Returns the shape of a draft from `count` uniforms."""

  def propose():
    if name in table.ON_TABLES:
      ctx, state = started(drafter, "traversal", Sampling(), KEYS[:2])
    else:
      target = network_for(table.CONFIGS[0])
      decoder = Decoder(target, drafter, RULES["traversal"])
      found = table.models()
      params = {x: found[y].params for x, y in table.ROWS[name].networks.items()}
      params["target"] = table.drawn(table.CONFIGS[0])
      params = jax.tree.map(jnp.asarray, params)
      ctx, state = networks.prepare(
        decoder, params, INPUTS[:2], KEYS[:2], Sampling(), ROOM, 1
      )
    uniforms = jnp.full((2, count, LEVELS), 0.5)
    return ctx.drafter.propose(ctx, state, uniforms)[0].tokens

  return jax.eval_shape(propose).shape


# Copies and the likeliest tokens of a pruned tree are not drawn.
DRAWN = table.ON_TABLES.keys() - {"copy", "pruned heads"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*sorted(DRAWN), "layer skip", "parallel in a tree"])
def test_a_drafter_takes_one_uniform_per_decision(name):
  row = table.ROWS[name]
  is_on_tables = name in table.ON_TABLES
  drafter = drafter_of(name) if is_on_tables else row.of_networks(table.models())
  count = decisions_of(drafter)
  assert drafted_shape(name, drafter, count) == (2, drafter.tree.size)
  for other in (count - 1, count + 1):
    with pytest.raises(ValueError, match=f"Expected uniforms of {count} decisions, "):
      drafted_shape(name, drafter, other)


def test_a_knob_s_check_accepts_the_default():
  for record in WAYS.values():
    for field, (default, knob) in record.knobs.items():
      assert knob.check is None or knob.check.accepts(default), (record.name, field)
      assert knob.about
