"""Parts of an iteration: repeated programs, numbers of calls, and slopes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import iteration, timed
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.greedy import rule_at
from specdec_t5x.core.rules import RULES
from specdec_t5x.core.tree import delayed
from specdec_t5x.decoding.drafter import Context, Loaded, Target
from specdec_t5x.decoding.state import initial_state, row_keys
from specdec_t5x.decoding.step import Speculation
from specdec_t5x.drafters.draft_model import DraftModel
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.native.distributions import adjusted_probs
from tests.hash_model import HashModel

pytestmark = pytest.mark.slow

TARGET, DRAFT = (HashModel(seed, vocab_size=5) for seed in (1, 2))
CHAIN = DraftModel(None, 3)
SAMPLED = Sampling(temperature=1.0)


def prepare(calls, drafter=CHAIN, sampling=GREEDY):
  """Returns a function that makes a speculation and logs model calls in `calls`."""

  def counted(name, extend):
    def run(cache, tokens, *args):
      jax.debug.callback(lambda *_: calls.append((name, tokens.shape[1])), tokens)
      return extend(cache, tokens, *args)

    return run

  def start():
    target = counted("target", TARGET.extend)
    draft = Loaded(counted("draft", DRAFT.extend), lambda: DRAFT.start(2, 40))
    context = Context(
      sampling, adjusted_probs, 30, iteration.NEVER, Target(target, 5), {"draft": draft}
    )
    spec = Speculation(drafter, *rule_at(RULES["traversal"], sampling), context)
    target_cache = TARGET.start(2, 40)
    draft_cache = drafter.start(context)
    keys = row_keys(jax.random.key(0), 2)
    return spec, initial_state(target_cache, draft_cache, keys, 30, drafter.tree.size)

  return start


@pytest.mark.parametrize(
  ("name", "sampling", "each"),
  [
    ("draft", GREEDY, {("draft", 2): 1, ("draft", 1): 2}),
    ("scoring", SAMPLED, {("target", 4): 1}),
    ("token", SAMPLED, {("target", 1): 1}),
    ("verification", GREEDY, {}),
    ("verification", SAMPLED, {}),
    ("iteration", SAMPLED, {("draft", 2): 1, ("draft", 1): 2, ("target", 4): 1}),
  ],
)
def test_a_part_runs_the_requested_number_of_times(name, sampling, each):
  assert calls_of_three(name, sampling=sampling) == {k: 3 * n for k, n in each.items()}


def test_a_tree_is_scored_in_one_call_and_drafted_in_one_call_per_level():
  drafter = TreeDraft(None, delayed(1, 2, 3))
  assert calls_of_three("scoring", drafter) == {("target", 6): 3}
  # Fed are the last two known tokens, the stem and the two nodes below the stem. Leaves
  # are not fed.
  assert calls_of_three("draft", drafter) == {("draft", 2): 6, ("draft", 1): 3}


def calls_of_three(name, *how, **more):
  """Returns the model calls in three repetitions of a part, by tokens per row."""
  calls = []
  program = iteration.part_programs(prepare(calls, *how, **more))[name]
  counts = {}
  for count in (2, 5):
    calls.clear()
    jax.block_until_ready(program(jnp.int32(count)))
    jax.effects_barrier()
    counts[count] = {key: calls.count(key) for key in calls}
  more = {key: counts[5][key] - counts[2].get(key, 0) for key in counts[5]}
  return {key: n for key, n in more.items() if n}


def test_programs_are_compiled_once_for_all_counts():
  start = chex.assert_max_traces(n=1)(prepare([]))
  program = iteration.part_programs(start)["scoring"]
  program(jnp.int32(1)), program(jnp.int32(4))


def test_a_slope_excludes_the_fixed_time_of_a_call():
  def each(*seconds):
    return timed.Timed(np.array(seconds), ())

  slopes = timed.slopes({("a", 2): each(7.0, 9.0), ("a", 6): each(15.0, 21.0)})
  np.testing.assert_allclose(slopes["a"], [2.0, 3.0])
