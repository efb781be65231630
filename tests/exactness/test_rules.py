"""Every rule has the promised distribution, over every draft and every accept event.

For each setting, the float64 oracle enumerates all paths of speculative decoding. The
test drives the compiled rule along each path, at both edges and in the middle of each
cell of uniforms. The test then compares the resulting distribution of whole outputs.
"""

import dataclasses

import numpy as np
import pytest

from specdec_t5x.core import theory
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES, rule_at
from specdec_t5x.core.rules.lenient import Lenient, LenientGreedy
from specdec_t5x.core.rules.lossy import Distance, TopK
from specdec_t5x.core.rules.token import Greedy
from specdec_t5x.core.tree import chain
from specdec_t5x.core.types import Guarantee
from specdec_t5x.drafters.tree_draft import delayed
from specdec_t5x.ways import rule_for
from tests.exactness import distributions, oracles
from tests.exactness.driving import difference, rule_probs
from tests.exactness.enumeration import (
  Setting,
  explore,
  iterate,
  output_probs,
  target_probs,
)

COUPLED = Sampling(coupled=True)
EXACT = ("token", "block", "kseq", "recursive", "traversal")
ON_TREES = ("kseq", "recursive", "traversal")
# (name, tree, vocabulary size).
SINGLE = [("token", chain(3), 4), ("block", chain(3), 4)]
SEVERAL = [(name, delayed(0, 2, 2), 3) for name in ON_TREES]
LARGER = [("block", chain(3), 5), *((name, delayed(0, 4, 1), 3) for name in ON_TREES)]
WIDE = [
  ("block", chain(1), 200),
  *((name, delayed(0, 2, 1), 200) for name in ("kseq", "recursive")),
  ("token", chain(1), 40_000),
]
SAMPLING = [
  Sampling(1.0),
  Sampling(0.5),
  Sampling(1.0, top_k=2),
  Sampling(1.0, top_p=0.6),
  Sampling(1.7, top_k=3),
  Sampling(0.7, top_p=0.8),
  GREEDY,
]
KINDS = [
  "equal",
  "equal up to rounding",
  "disjoint",
  "one-hot draft",
  "one-hot target",
  "partly shared",
]


def pair_of_probs(kind, size):
  sampled = distributions.sampled(1, size, Sampling(1.0))
  if kind == "equal":
    return sampled, sampled
  if kind == "equal up to rounding":

    def rounded(prefix):
      return np.float32(sampled(prefix)).astype(np.float64)

    return sampled, lambda prefix: rounded(prefix) / rounded(prefix).sum()
  if kind == "disjoint":
    return distributions.on([0, 1], size), distributions.on([2], size)
  if kind == "one-hot draft":
    return sampled, distributions.one_hot(2, size)
  if kind == "one-hot target":
    return distributions.one_hot(3, size), sampled
  return distributions.on([0, 1], size), distributions.on([0, 2], size)


def assert_exact(setting, name):
  expected = target_probs(setting)
  assert difference(output_probs(setting), expected) < 1e-9
  for distribution in rule_probs(RULES[name], setting):
    assert difference(distribution, expected) < 1e-6


def setting_of(rule, target, draft, room=4):
  name, tree, _ = rule
  return Setting(target, draft, oracles.JUDGES[name], tree.parents, room)


def id_of(part):
  """Returns the name of a rule setting, or of a sampling, in a test's id."""
  if not isinstance(part, tuple):
    return str(part)
  name, tree, size = part
  return f"{name}-{''.join(map(str, tree.parents))}-{size}"


def pairwise(others):
  """Returns pairs with every rule, at least twice, and every element of `others`."""
  rules = SINGLE + SEVERAL
  # The counts have no common divisor, so no pair repeats.
  count = max(2 * len(rules), len(others))
  return [(rules[i % len(rules)], others[i % len(others)]) for i in range(count)]


@pytest.mark.parametrize(("rule", "sampling"), pairwise(SAMPLING), ids=id_of)
def test_exact_rules_keep_the_target_s_distribution(rule, sampling):
  target, draft = (distributions.sampled(seed, rule[2], sampling) for seed in (1, 2))
  assert_exact(setting_of(rule, target, draft), rule[0])


@pytest.mark.parametrize(("rule", "kind"), pairwise(KINDS), ids=id_of)
def test_exact_rules_keep_the_distribution_in_edge_cases(rule, kind):
  assert_exact(setting_of(rule, *pair_of_probs(kind, rule[2])), rule[0])


@pytest.mark.parametrize("rule", LARGER, ids=id_of)
def test_exact_rules_keep_the_distribution_in_larger_settings(rule):
  target, draft = (distributions.sampled(seed, rule[2], Sampling()) for seed in (4, 5))
  assert_exact(setting_of(rule, target, draft, rule[1].depth + 1), rule[0])


@pytest.mark.parametrize("rule", WIDE, ids=id_of)
def test_exact_rules_keep_the_distribution_with_large_vocabularies(rule):
  """Tokens lie apart, in one group of the tree, and at the ends; p and q share some."""
  size = rule[2]
  groups = -(-size // 8)
  target = distributions.few_of_many(4, [1, 2 + groups, size - 1], size)
  draft = distributions.few_of_many(5, [1, 2, 2 + groups], size)
  assert_exact(setting_of(rule, target, draft, room=2), rule[0])


@pytest.mark.parametrize(
  "draft", [distributions.sampled(2, 4, GREEDY), distributions.on([0, 2, 3], 4)]
)
def test_the_greedy_rule_gives_the_greedy_output_for_any_draft(draft):
  target = distributions.sampled(1, 4, Sampling())
  setting = Setting(target, draft, oracles.greedy, (0, 1, 2), max_length=4)
  greedy = Setting(distributions.one_hot(1, 4), draft, None, (0, 1, 2), max_length=4)
  for distribution in rule_probs(RULES["greedy"], setting):
    assert difference(distribution, target_probs(greedy)) < 1e-6


@pytest.mark.parametrize("lenience", [0.3, 1.0])
def test_lenience_bounds_probabilities_and_has_the_paper_s_alpha(lenience):
  target, draft = (distributions.sampled(seed, 4, Sampling()) for seed in (1, 2))
  judge = oracles.lenient(lenience)
  setting = Setting(target, draft, judge, (0, 1), max_length=4)
  expected = output_probs(setting)
  for distribution in rule_probs(Lenient(lenience), setting):
    assert difference(distribution, expected) < 1e-6
  # With a single token, compare the drafted, accepted and recovered mass to the bound.
  one = Setting(target, draft, judge, (0,), max_length=2, eos_id=-1)
  first = np.zeros(4)
  for output, mass in output_probs(one).items():
    first[output[0]] += mass
  p = target(())
  q = draft(())
  assert (first <= p / lenience + 1e-12).all()
  accepted = np.minimum(p / lenience, q)
  assert accepted.sum() == pytest.approx(theory.lenient_acceptance(p, q, lenience))
  residual = np.maximum(p - q, 0)
  recovered = (1 - accepted.sum()) * residual / residual.sum()
  np.testing.assert_allclose(first, accepted + recovered, atol=1e-12)
  assert (np.abs(first - p).max() > 1e-3) == (lenience < 1)


@pytest.mark.parametrize("lenience", [0.2, 1.0])
def test_greedy_lenience_accepts_sufficiently_likely_tokens(lenience):
  target = distributions.sampled(1, 4, Sampling())
  draft = distributions.one_hot(2, 4)
  judge = oracles.lenient_greedy(lenience)
  setting = Setting(target, draft, judge, (0, 1), max_length=4)
  for distribution in rule_probs(LenientGreedy(lenience), setting):
    assert difference(distribution, output_probs(setting)) < 1e-6


@pytest.mark.parametrize(
  ("rule", "passes"),
  [
    (TopK(2), lambda p, x: x in np.argsort(-p)[:2]),
    (Distance(1), lambda p, x: abs(x - int(p.argmax())) <= 1),
  ],
  ids=["top 2", "distance 1"],
)
def test_approximate_acceptance_is_as_published_and_lossy(rule, passes):
  """Tokens that pass are accepted, and argmax p follows, for many drafts."""
  differs = 0
  for seed in range(4):
    target = distributions.sampled(seed, 4, Sampling())
    draft = distributions.one_hot(seed + 20, 4)
    judge = oracles.greedy_while(passes)
    setting = Setting(target, draft, judge, (0, 1), max_length=4)
    for distribution in rule_probs(rule, setting):
      assert difference(distribution, output_probs(setting)) < 1e-6
    greedy = dataclasses.replace(setting, judge=oracles.greedy)
    differs += output_probs(greedy).keys() != output_probs(setting).keys()
  assert differs > 0
  assert rule.guarantee is Guarantee.LOSSY
  assert rule_at(rule, GREEDY) == (rule, Sampling(1.0))


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY], ids=str)
def test_typical_acceptance_is_as_published_and_lossy_unless_greedy(sampling):
  target, draft = (distributions.sampled(seed, 4, sampling) for seed in (1, 2))
  setting = Setting(target, draft, oracles.JUDGES["typical"], (0, 1), max_length=4)
  expected = output_probs(setting)
  for distribution in rule_probs(RULES["typical"], setting):
    assert difference(distribution, expected) < 1e-6
  assert (difference(expected, target_probs(setting)) > 0.01) == (not sampling.greedy)


def test_block_verification_accepts_at_least_as_many_tokens_as_token_verification():
  def accepted_by(name, seed):
    draws = (distributions.sampled(seed + i, 4, Sampling()) for i in range(2))
    judge = oracles.JUDGES[name]
    setting = Setting(*draws, judge, (0, 1, 2), max_length=9, eos_id=-1)
    paths = explore(lambda world: iterate(world, setting, ()))
    return sum(path.probability * path.result[1] for path in paths)

  gains = [accepted_by("block", s) - accepted_by("token", s) for s in range(8)]
  assert min(gains) > -1e-12
  assert max(gains) > 0.01


def test_rules_state_their_guarantee():
  for rule in (RULES[name] for name in EXACT):
    assert rule.guarantee is Guarantee.EXACT
    assert rule_at(rule, GREEDY) == (RULES["greedy"], GREEDY)
    assert rule_at(rule, Sampling()) == (rule, Sampling())
  claimed = {name for name in RULES if RULES[name].guarantee is Guarantee.EXACT}
  # tests/exactness/test_coupled.py enumerates 'coupled'; 'lenient' is 'token' at 1.
  assert claimed == {*EXACT, "coupled", "lenient"}, "Give a new exact rule a row above."
  assert RULES["greedy"].guarantee is Guarantee.GREEDY_EXACT
  for lenience, guarantee in ((1.0, "EXACT"), (0.5, "BOUNDED"), (0.999, "BOUNDED")):
    assert rule_for("lenient", lenience).guarantee is Guarantee[guarantee]
    assert Lenient(lenience).alpha_is_mass == (guarantee == "EXACT")
  assert RULES["typical"].guarantee is Guarantee.LOSSY
  assert rule_at(Lenient(0.5), GREEDY) == (LenientGreedy(0.5), Sampling(1.0))
  assert LenientGreedy(0.5).guarantee is Guarantee.BOUNDED
  assert rule_at(Lenient(), GREEDY) == (Greedy(), GREEDY)
  assert rule_at(Lenient(), Sampling(0.5)) == (Lenient(), Sampling(0.5))
  kept = {g for g in Guarantee if g.keeps_distribution}
  assert kept == {Guarantee.EXACT, Guarantee.GREEDY_EXACT}


@pytest.mark.parametrize(
  ("name", "sampling", "knobs", "message"),
  [
    ("lenient", Sampling(1.0), {"lenience": 1.5}, "above 0 and at most 1, got 1.5"),
    ("top_k", GREEDY, {"k": 1}, "at least 2, got 1. 1 is the rule 'greedy'"),
    ("distance", GREEDY, {"epsilon": 0}, "epsilon must be .* at least 1, got 0"),
    ("lenient", COUPLED, {"lenience": 0.5}, "need a rule that keeps the target's"),
    ("typical", COUPLED, {}, "need a rule that keeps the target's"),
  ],
)
def test_incompatible_settings_are_refused(name, sampling, knobs, message):
  with pytest.raises(ValueError, match=message):
    rule_at(dataclasses.replace(RULES[name], **knobs), sampling)
