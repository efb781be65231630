"""The properties that all ways to draft share, driven by tests/table.py.

Coupled samples have plain sampling's noise at every place. A sample that depends on a
draft, a rest, a refilled row or a neighbour would therefore be a different token.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from specdec_t5x.core.distributions import GREEDY, LEVELS, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import chain
from specdec_t5x.core.types import Proposal
from specdec_t5x.decoding.contracts import decisions, decisions_of
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.decoding.loop import generate, step
from specdec_t5x.decoding.policies import CostAware, Fixed
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft, delayed
from specdec_t5x.network.functional import network_for
from specdec_t5x.ways import WAYS
from tests import hash_model, networks, table
from tests.hash_model import HashModel, output_lengths, sequence_probs, speculation
from tests.t5x_bridge import tiny
from tests.test_policies import Alternating

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
  np.testing.assert_allclose(
    found.statistics.log_prob, expected.statistics.log_prob, rtol=1e-5
  )


# ---- Table models. ----

LENGTH = 12
ROWS = 200
KEYS = row_keys(jax.random.key(0), ROWS)


@functools.cache
def plain():
  return jax.jit(lambda: hash_model.plain(table.TARGET, COUPLED, KEYS, LENGTH))()


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
  return jax.jit(lambda: generate(*started(*how, **given)))()


@pytest.mark.parametrize("name", each(table.ON_TABLES, QUICK))
def test_coupled_samples_equal_plain_sampling_s_with_rests(name):
  drafter = drafter_of(name)
  decoded = decode(drafter, "coupled", COUPLED, KEYS, resting(drafter))
  same_tokens(decoded, plain())
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


@pytest.mark.slow
def test_a_perfect_draft_is_accepted_in_full():
  """Draft and target share the noise of each place, in the draft's first branch."""
  target = HashModel(seed=4, vocab_size=5, eos_bias=-30.0)
  drafter = TreeDraft(target, delayed(0, 3, 2))
  decoded = decode(drafter, "coupled", COUPLED, KEYS, target=target)
  np.testing.assert_array_equal(decoded.statistics.target_calls, LENGTH // 3)


@pytest.mark.parametrize("name", each(table.ON_TABLES, QUICK))
def test_samples_have_statistics_and_depend_on_no_other_row(name):
  """The rule is the row's rule; some rows are decoded again among other neighbours."""
  rule = table.ROWS[name].rule
  drafter = drafter_of(name)
  run = jax.jit(lambda keys: generate(*started(drafter, rule, Sampling(), keys)))
  found = run(KEYS)
  order = np.random.default_rng(0).integers(ROWS // 4, size=ROWS)
  again = run(KEYS[order])
  assert len(np.unique(found.tokens, axis=0)) > 50
  np.testing.assert_array_equal(again.tokens, found.tokens[order])
  info = found.statistics
  np.testing.assert_array_equal(info.emitted, output_lengths(np.asarray(found.tokens)))
  p = table.TARGET.distribution(Sampling())
  for row, length, score in zip(
    found.tokens[:9].tolist(), info.emitted, info.log_prob, strict=False
  ):
    probs = [p(tuple(row[:i]))[row[i]] for i in range(length)]
    assert score == pytest.approx(np.log(probs).sum(), rel=1e-4)
  # Each call adds a token of the target, unless the draft ended the output.
  surplus = np.asarray(info.accepted + info.target_calls - info.emitted)
  assert set(surplus) <= {0, 1}
  assert (info.accepted <= info.acceptance_positions).all()
  assert (info.acceptance_positions <= info.drafted).all()
  assert 0 < info.accepted.sum() < info.drafted.sum()
  if RULES[rule].alpha_is_mass and drafter.tree.is_chain:
    # The estimates of alpha agree: accepted / tried and sum of min(p, q) / tried.
    tried = info.acceptance_positions.sum()
    alphas = info.accepted.sum() / tried, info.acceptance_mass.sum() / tried
    assert abs(alphas[0] - alphas[1]) < 4 * np.sqrt(0.25 / tried)


@pytest.mark.parametrize(
  "policy",
  [Fixed(), pytest.param(Alternating(), marks=pytest.mark.slow)],
  ids=["fixed", "with rests"],
)
def test_samples_follow_the_enumerated_distribution(policy):
  """A chi-squared test at level 0.001, with the same draws in every run."""
  keys = row_keys(jax.random.key(0), 20_000)
  drafter = drafter_of("draft model")
  decoded = decode(drafter, "token", Sampling(), keys, policy, max_length=5)
  expected = sequence_probs(table.TARGET, Sampling(), 5)
  assert_follows(np.asarray(decoded.tokens), expected)
  assert 0 < decoded.statistics.accepted.sum() < decoded.statistics.drafted.sum()


def assert_follows(outputs, distribution, level=1e-3):
  """Applies a chi-squared test, with rare outcomes pooled."""
  seen, counts = np.unique(outputs, axis=0, return_counts=True)
  observed = {tuple(o): c for o, c in zip(seen.tolist(), counts, strict=True)}
  assert set(observed) <= {o for o, p in distribution.items() if p > 0}
  expected = np.array(list(distribution.values())) * len(outputs)
  found = np.array([observed.get(o, 0) for o in distribution])
  rare = expected < 10
  expected = np.append(expected[~rare], expected[rare].sum())
  found = np.append(found[~rare], found[rare].sum())
  keep = expected > 0
  expected = expected[keep]
  found = found[keep]
  assert stats.chisquare(found, expected * found.sum() / expected.sum()).pvalue > level


def test_chi_squared_test_can_fail():
  distribution = {(2,): 0.5, (3,): 0.5}
  outputs = np.where(np.arange(20_000)[:, None] < 10_400, 2, 3)
  with pytest.raises(AssertionError):
    assert_follows(outputs, distribution)


# ---- Tiny networks. ----

INPUTS = jnp.array(
  [[5, 6, 7, 1], [9, 3, 1, 0], [4, 4, 8, 1], [2, 1, 0, 0], [3, 9, 9, 1]]
)
ROOM = 10


def run(name, sampling, slots=0, is_prompted=False, **words):
  """Decodes the inputs with a row's drafter, or plainly without a name."""
  found = table.decoder_only() if is_prompted else table.models()
  drafter, drafts = None, {}
  if name:
    row = table.ROWS[name]
    drafter = row.of_networks(found)
    drafts = {own: found[model] for own, model in row.networks.items()}
    words = {"policy": resting(drafter), **words}
  target = found["target"] if is_prompted else table.target()
  words |= {"inputs": INPUTS, "room": ROOM, "sampling": sampling, "slots": slots}
  return networks.decode(target, drafts or None, drafter, **words)


@functools.cache
def plain_run(sampling, is_prompted=False):
  decoded = run(None, sampling, is_prompted=is_prompted)
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


@pytest.mark.parametrize("name", each(table.PROMPTED, ["distinct tree"]))
def test_decoder_only_networks_continue_prompts_of_several_lengths(name):
  decoded = run(name, COUPLED, slots=2, is_prompted=True, rule="coupled")
  same_tokens(decoded, plain_run(COUPLED, is_prompted=True))
  assert decoded.statistics.drafted.sum() > 0


# Ways that no page of the documentation decodes, and a chain of every kind.
GREEDILY = ("auto", "copy", "blockwise", "parallel", "trimmed eagle", "heads in a tree")
GREEDILY += ("quantized by name", "shared encoder in a tree", "candidates")
GREEDILY += ("cascade that ends early",)
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
  target = table.target()
  decoder = Decoder(target.network, rule=RULES["coupled"])
  params = {"target": target.params}
  found = networks.run(decoder, params, INPUTS, ROOM, Sampling())
  same_tokens(found, plain_run(COUPLED))
  same_tokens(run("draft model", Sampling(), rule="coupled"), plain_run(COUPLED))


@pytest.mark.parametrize(("rows", "most"), [(59, 4), (128, 8)])
def test_a_draft_of_another_vocabulary_is_refused(rows, most):
  """Rows of the table draft with up to `most` padding rows more or less."""
  target, draft = (network_for(tiny.config(1, 8, vocab_size=x)) for x in (64, rows))
  message = f"vocab_size is 64 and .* is {rows}.* rows may differ by up to {most}"
  with pytest.raises(ValueError, match=message):
    Decoder(target, DraftModel(draft))


# ---- Uniforms: one per decision, and none twice. ----

MESSAGE = "Expected uniforms of {} decisions, .* got an array of shape"


def drafted_shape(drafter, count):
  """Returns the shape of a draft from `count` uniforms."""

  def propose():
    ctx, state = started(drafter, "traversal", Sampling(), KEYS[:2])
    uniforms = jnp.full((2, count, LEVELS), 0.5)
    return ctx.drafter.propose(ctx, state, uniforms)[0].tokens

  return jax.eval_shape(propose).shape


DRAWN = [name for name in table.ON_TABLES if table.ROWS[name].is_drawn]


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_a_drafter_takes_one_uniform_per_decision(name):
  drafter = drafter_of(name)
  count = decisions_of(drafter)
  assert drafted_shape(drafter, count) == (2, drafter.tree.size)
  for other in (count - 1, count + 1):
    with pytest.raises(ValueError, match=MESSAGE.format(count)):
      drafted_shape(drafter, other)


def test_an_iteration_takes_uniforms_for_the_draft_and_for_the_rule(unchecked):
  drafter = drafter_of("cascade")
  count = decisions_of(drafter) + drafter.tree.size + 1
  assert decisions(drafter) == count

  def iterate(count):
    uniforms = jnp.full((2, count, LEVELS), 0.5)
    begun = started(drafter, "traversal", Sampling(), KEYS[:2])
    return step(*begun, uniforms)[0].lengths

  jax.eval_shape(lambda: iterate(count))
  with pytest.raises(ValueError, match=MESSAGE.format(drafter.tree.size + 1)):
    jax.eval_shape(lambda: iterate(count - 1))


def judged(rule, tree, count):
  """Returns the shape of a verdict from `count` uniforms."""
  size = tree.size
  shape = (2, tree.size)
  proposal = Proposal(
    jnp.zeros(shape, jnp.int32),
    jnp.full((*shape, 3), 1 / 3),
    jnp.ones(shape, bool),
    tree,
  )
  probs = jnp.full((2, size + 1, 3), 1 / 3)
  uniforms = jnp.zeros((2, count, 2))
  return jax.eval_shape(lambda: rule.verify(probs, proposal, uniforms).last).shape


# The remaining rules compare tokens, and draw nothing.
READING = sorted(set(RULES) - {"greedy", "top_k", "distance"})
TREES = [(name, delayed(1, 2, 3)) for name in READING if RULES[name].takes_trees]


@pytest.mark.slow
@pytest.mark.parametrize(
  ("name", "tree"),
  [*((name, chain(3)) for name in READING), *TREES],
  ids=lambda part: part if isinstance(part, str) else f"{part.size} nodes",
)
def test_a_rule_takes_one_uniform_per_node_and_one_more(name, tree, unchecked):
  rule = RULES[name]
  assert judged(rule, tree, tree.size + 1) == (2,)
  for count in (tree.size, 1, tree.size + 2):
    with pytest.raises(ValueError, match=MESSAGE.format(tree.size + 1)):
      judged(rule, tree, count)


@pytest.mark.parametrize("name", sorted(set(RULES) - set(READING)))
def test_rules_that_draw_nothing_read_no_uniforms(name):
  rule = RULES[name]

  @jax.jit
  def verdict(fill):
    proposal = Proposal.chain(jnp.array([[0]]), None, 1)
    uniforms = jnp.full((1, 2, LEVELS), fill)
    found = rule.verify(jnp.eye(3)[None, :2], proposal, uniforms)
    return found.last, found.next_token

  assert verdict(0.0) == verdict(jnp.nan)


def test_a_knob_s_check_accepts_the_default():
  for name, drafter in WAYS.items():
    for field in dataclasses.fields(drafter):
      if knob := field.metadata.get("knob"):
        assert knob.accepts(field.default), (name, field)
