"""Calls of a hierarchy by hand, greedy outputs, and refusals."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.rules.token import Token
from specdec_t5x.core.tree import Tree
from specdec_t5x.decoding.loop import generate
from specdec_t5x.decoding.state import row_keys
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.of_target import Quantized
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network.heads import HeadsConfig
from tests.hash_model import HashHeads, HashModel, sequence_probs, speculation

TARGET, MIDDLE, LOWER = (HashModel(s, vocab_size=5, eos_bias=-30.0) for s in (4, 5, 6))


def decode(drafter, length, sampling=GREEDY, target=TARGET):
  """Returns a decode, and the number of calls of each level below the target."""
  keys = row_keys(jax.random.key(0), 1)
  kept = []

  def loop(*arguments):
    carry = jax.lax.while_loop(*arguments)
    kept.append(carry[0].drafter_state)
    return carry

  @jax.jit
  def run():
    begun = speculation(target, drafter, Token(), sampling, keys, length)
    return generate(*begun, loop), kept[-1]

  decoded, state = run()
  calls = []
  while hasattr(state, "calls"):
    calls.append(state.calls)
    state = state.lower
  return decoded, calls


# ---- Calls, by hand. ----


@pytest.mark.parametrize(
  ("sampling", "window"), [(GREEDY, "fixed"), (Sampling(), "flush")], ids=["T=0", "T=1"]
)
def test_a_perfect_hierarchy_accepts_full_windows(sampling, window):
  """The middle network takes one call per window of 4, the target one per 5 tokens."""
  drafter = Cascade(TARGET, DraftModel(TARGET, 3), 4, window)
  decoded, (calls,) = decode(drafter, 15, sampling)
  assert (decoded.statistics.target_calls, calls) == (3, 3)
  assert decoded.statistics.accepted == decoded.statistics.drafted == 12


@pytest.mark.slow
def test_three_perfect_levels_accept_full_windows():
  """A window of 9 takes two calls of each level below the target."""
  lower = Cascade(TARGET, DraftModel(TARGET, 3), 4)
  decoded, calls = decode(Cascade(TARGET, lower, 9), 20)
  # The upper network adds a token to each lower window: 4 + 1 tokens, then 3 + 1.
  assert decoded.statistics.target_calls == 2
  assert [int(count[0]) for count in calls] == [4, 4]


class Contrary(HashModel):
  """Negates the logits of a table, except for EOS."""

  def extend(self, *args):
    logits, *rest = super().extend(*args)
    return -logits.at[..., 1].set(-logits[..., 1]), *rest


@pytest.mark.parametrize(
  ("window", "target_calls", "middle_calls"), [("fixed", 4, 12), ("flush", 6, 6)]
)
def test_a_lowest_model_without_accepted_tokens_costs_a_call_per_token(
  window, target_calls, middle_calls
):
  """Each call of the middle network gives one token, the correction."""
  drafter = Cascade(TARGET, DraftModel(Contrary(4, 5, eos_bias=-30.0), 2), 3, window)
  decoded, (calls,) = decode(drafter, {"fixed": 16, "flush": 12}[window])
  assert (decoded.statistics.target_calls, calls) == (target_calls, middle_calls)


def test_a_middle_network_without_accepted_tokens_costs_a_target_call_per_token():
  """The windows are complete, but the target rejects the first token of each window."""
  middle = Contrary(4, 5, eos_bias=-30.0)
  decoded, (calls,) = decode(Cascade(middle, DraftModel(middle, 2), 3), 6)
  # With room for r tokens, a window has min(3, r - 1) tokens. No tokens take no call.
  assert (decoded.statistics.target_calls, calls) == (6, 5)
  assert decoded.statistics.accepted == 0


# ---- Outputs. ----


def test_outputs_continue_a_prompt():
  models = [dataclasses.replace(m, prompt=(3, 4, 2)) for m in (TARGET, MIDDLE, LOWER)]
  drafter = Cascade(models[1], DraftModel(models[2], 2), 4)
  decoded, _ = decode(drafter, 9, target=models[0])
  (output,) = sequence_probs(models[0], GREEDY, 9)
  assert tuple(decoded.tokens[0].tolist()) == output


@pytest.mark.slow
def test_nan_in_a_distribution_shows_in_the_statistics():
  class Broken(HashModel):
    def extend(self, *args):
      logits, *rest = super().extend(*args)
      return logits * jnp.nan, *rest

  for middle, lower, sampling in [
    (Broken(5, 5), LOWER, GREEDY),
    (MIDDLE, Broken(6, 5), Sampling()),
  ]:
    decoded, _ = decode(Cascade(middle, DraftModel(lower, 2), 3), 6, sampling)
    assert jnp.isnan(decoded.statistics.acceptance_mass).all()


# ---- Refusals. ----


def test_networks_have_names_by_level():
  lower = Cascade(LOWER, DraftModel(TARGET, 2), 3)
  networks = Cascade(MIDDLE, lower, 4).networks
  assert networks == {"draft": MIDDLE, "draft_2": LOWER, "draft_3": TARGET}
  # A network that is the target gets no name.
  assert Cascade(Quantized(), lower, 4).networks == lower.networks


@pytest.mark.parametrize(
  "lower",
  [
    HeadDraft(HashHeads(4, 5, HeadsConfig("medusa", 2, 1))),
    TreeDraft(LOWER, Tree((0, 0))),
    Cascade(Quantized(), DraftModel(LOWER, 2), 3),
  ],
  ids=lambda drafter: type(drafter).__name__,
)
def test_unsupported_lower_drafters_are_refused(lower):
  with pytest.raises(ValueError, match="a lower drafter of chains without features"):
    Cascade(MIDDLE, lower, 4)
