"""The automatic length: what it chooses; outputs at T = 0 do not depend on it."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.analysis.theory import expected_tokens
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules import RULES
from specdec_t5x.decoding.baseline import generate_plain
from specdec_t5x.decoding.generate import generate, python_loop
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.adaptive import AdaptiveDraft
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.policies import Always, Auto, Counts, Policy
from specdec_t5x.drafters.registry import get_drafter
from tests.decoding.test_generate import output_lengths
from tests.hash_model import HashModel, speculation

TARGET, DRAFT = (HashModel(seed, vocab_size=6, eos_bias=-1.0) for seed in (1, 2))
GAMMA, ROOM, ROWS = 3, 21, 6
TURNS = Auto((1.0, 1.35, 1.55, 1.8), 0.5, prior_weight=1.0, decay=0.5)


@dataclasses.dataclass(frozen=True)
class Alternating(Policy):
  """Drafts in iterations of even number, told by counts of what never was."""

  may_draft_nothing = True

  def most(self, counts, gamma):
    return jnp.where(counts.tried % 2 == 0, gamma, 0).astype(jnp.int32)

  def learned(self, counts, accepted, tried):
    return counts.replace(tried=counts.tried + 1)


PATTERNS = {
  "always rests": Auto((1.0, 9.0, 9.0, 9.0)),
  "always drafts": Auto((9.0, 9.0, 9.0, 1.0)),
  "one token": Auto((9.0, 1.0, 9.0, 9.0)),
  "takes turns": TURNS,
  "alternates": Alternating(),
  "told none": Always(0),
  "told two": Always(2),
}


def start(policy, sampling=GREEDY):
  drafter = AdaptiveDraft(DRAFT, GAMMA, policy) if policy else DraftModel(DRAFT, GAMMA)
  keys = row_keys(jax.random.key(0), ROWS)
  spec, state = speculation(TARGET, drafter, RULES["token"], sampling, keys, ROOM)
  # Rows of several beginnings, whose outputs end at several places.
  firsts = 2 + jnp.arange(ROWS) % 4
  return spec, state.replace(
    sequences=state.sequences.at[:, 1].set(firsts), lengths=state.lengths + 1
  )


def decode(policy, sampling=GREEDY, loop=jax.lax.while_loop):
  return generate(*start(policy, sampling), loop)


@functools.cache
def compiled(policy, sampling=GREEDY):
  """What the compiled loop decodes; each program is built once for all tests."""
  return jax.jit(lambda: decode(policy, sampling))()


@functools.cache
def plain():
  spec, state = start(None)
  return jax.jit(
    lambda: generate_plain(spec.context.target, GREEDY, state, ROOM, eos_id=1)
  )()


# ---- Outputs and statistics. ----


@pytest.mark.parametrize("policy", PATTERNS.values(), ids=PATTERNS)
def test_greedy_outputs_are_those_of_the_fixed_length_and_of_plain_decoding(policy):
  decoded, fixed = compiled(policy), compiled(None)
  np.testing.assert_array_equal(fixed.tokens, plain().tokens)
  np.testing.assert_array_equal(decoded.tokens, plain().tokens)
  np.testing.assert_allclose(decoded.scores, plain().scores, rtol=1e-5)
  lengths = output_lengths(np.asarray(decoded.tokens))
  assert len(set(lengths.tolist())) > 2, "rows end at several places"


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=str)
@pytest.mark.parametrize("policy", PATTERNS.values(), ids=PATTERNS)
def test_plain_turns_are_counted(policy, sampling):
  decoded = compiled(policy, sampling)
  info = decoded.statistics
  # The first token was known.
  emitted = output_lengths(np.asarray(decoded.tokens)) - 1
  np.testing.assert_array_equal(info.emitted, emitted)
  # Each call adds its own token, but for calls whose draft ended the sequence.
  surplus = info.accepted + info.target_calls - info.emitted
  assert set(np.asarray(surplus).tolist()) <= {0, 1}
  np.testing.assert_allclose(info.log_prob, decoded.scores, rtol=1e-5)
  if policy in (PATTERNS["always rests"], PATTERNS["told none"]):
    np.testing.assert_array_equal(info.target_calls, emitted)
    assert not info.drafted.any()
    assert not info.acceptance_positions.any()
  else:
    assert info.drafted.sum() > 0
    assert (info.target_calls < emitted).any()


@pytest.mark.parametrize("policy", [TURNS, Alternating()], ids=["turns", "alternates"])
def test_compiled_loop_equals_the_python_loop(policy):
  found = compiled(policy, Sampling())
  watched, kinds = watch(policy, Sampling())
  np.testing.assert_array_equal(found.tokens, watched.tokens)
  chex.assert_trees_all_close(found.statistics, watched.statistics, rtol=1e-5)
  assert kinds.count("speculate") > 2 < kinds.count("rest")


def watch(policy, sampling):
  """A decode by loops in Python, and what their turns were."""
  kinds = []

  def loop(condition, body, carry):
    # Both inner loops are of the outer one's turns, which can't be compiled then.
    is_outer = body.__name__ == "take_turns"
    compiled = body if is_outer else jax.jit(body)

    def watched(carry):
      kinds.extend([] if is_outer else [body.__name__])
      return compiled(carry)

    return python_loop(condition, watched, carry)

  return decode(policy, sampling, loop), kinds


# ---- The choice. ----


def counts_of(accepted, tried):
  return Counts(*(jnp.asarray(x, jnp.float32) for x in (accepted, tried)))


def test_it_chooses_the_length_of_most_tokens_a_second():
  rng, lengths = np.random.default_rng(0), np.arange(8)
  for _ in range(50):
    steps = rng.uniform(0.01, 0.6, size=7)
    seconds = np.cumsum([1.0, *steps])
    policy = Auto(seconds.tolist())
    tried = rng.uniform(0, 9, size=4)
    accepted = tried * rng.uniform(size=4)
    alpha = (1.5 + accepted.sum()) / (2 + tried.sum())
    speeds = expected_tokens(alpha, lengths) / seconds
    found = np.asarray(policy.most(counts_of(accepted, tried), 7))
    assert (found == found[0]).all(), "one length for the batch"
    np.testing.assert_allclose(speeds[found[0]], speeds.max(), rtol=1e-5)


def test_what_costs_nothing_is_drafted_and_what_never_pays_is_not():
  counts = counts_of([0.0, 9.0], [9.0, 9.0])
  np.testing.assert_array_equal(Auto((1.0, 1.0, 1.0)).most(counts, 2), 2)
  np.testing.assert_array_equal(Auto((1.0, 2.1, 3.2)).most(counts, 2), 0)


def test_where_drafts_fail_it_rests_until_the_counts_have_decayed():
  counts, none = counts_of([0.0], [30.0]), jnp.zeros(1, jnp.int32)
  policy, sizes = Auto((1.0, 1.5, 1.9)), []
  for _ in range(300):
    sizes.append(int(policy.most(counts, 2)[0]))
    counts = policy.learned(counts, none, none)
  assert (sizes[0], sizes[-1]) == (0, 2)
  assert sizes == sorted(sizes)


def test_where_nothing_was_measured_it_drafts_gamma():
  for accepted, tried in [(0.0, 0.0), (0.0, 1e6), (9.0, 9.0)]:
    counts = counts_of([accepted], [tried])
    np.testing.assert_array_equal(Auto().most(counts, 5), 5)


# ---- Tuning. ----


def tuned(*seconds, policy=None):
  drafter = AdaptiveDraft(DRAFT, max(len(seconds) - 1, 2), policy or Auto())
  told = []

  def time(drafter_told, lengths):
    told.extend(drafter_told(n).policy for n in (lengths[0], lengths[2]))
    return seconds

  return drafter.tuned(time), told


def test_a_drafter_is_tuned_with_what_was_measured(capsys):
  drafter, told = tuned(1.0, 1.2, 1.4)
  assert drafter == AdaptiveDraft(DRAFT, 2, Auto((1.0, 1.2, 1.4)))
  assert told == [Always(0), Always(2)]
  assert "Drafting pays on this device" in capsys.readouterr().err


def test_there_is_none_where_no_draft_pays_at_the_prior(capsys):
  # 1.75 and 2.31 tokens at alpha 0.75, and what is tried should gain a tenth.
  assert tuned(1.0, 1.58, 2.5)[0] is not None
  assert tuned(1.0, 1.60, 2.12)[0] is None
  assert "so decoding plainly" in capsys.readouterr().err
  lucky = dataclasses.replace(Auto(), prior_alpha=0.9)
  assert tuned(1.0, 1.60, 2.12, policy=lucky)[0] is not None


def test_what_could_not_be_measured_is_drafted(capsys):
  drafter, _ = tuned()
  assert drafter == AdaptiveDraft(DRAFT, 2, Auto())
  assert not capsys.readouterr().err


def test_what_is_known_is_not_measured():
  drafter, told = tuned(1.0, 1.2, 1.4, policy=Auto((1.0, 9.0, 9.0)))
  assert drafter.policy.seconds == (1.0, 9.0, 9.0)
  assert not told
  fixed = DraftModel(DRAFT, GAMMA)
  assert fixed.tuned(None) is fixed
  assert not fixed.may_rest


def test_there_is_a_time_for_each_length():
  Auto((1.0, 2.0, 3.0)).check(2)
  Auto().check(7)
  with pytest.raises(ValueError, match=r"needs 4 times, .* GAMMA=3 tokens, got 3"):
    AdaptiveDraft(DRAFT, 3, Auto((1.0, 2.0, 3.0)))
  for seconds in [(1.0, 0.0), (1.0, -1.0), (1.0, float("nan"))]:
    with pytest.raises(ValueError, match=r"Auto.seconds must be above 0"):
      Auto(seconds)
  for prior in ({"prior_alpha": 1.5}, {"prior_weight": 0.0}, {"decay": -0.1}):
    with pytest.raises(ValueError, match="Auto needs a prior_alpha and a decay"):
      Auto(**prior)


def test_it_is_the_default_of_single_drafts_of_a_model_alone():
  by_name = functools.partial(get_drafter, policy="auto")
  assert by_name("draft_model", DRAFT, 4) == AdaptiveDraft(DRAFT, 4, Auto())
  assert by_name("ngram", DRAFT, 4) == AdaptiveDraft(DRAFT, 4, Auto())
  trees = get_drafter("draft_model", DRAFT, 4, 2), get_drafter("copy", gamma=4)
  found = by_name("draft_model", DRAFT, 4, 2), by_name("copy", gamma=4)
  assert found == trees
  own = DraftModel(DRAFT, 4)
  assert by_name(own) is own
