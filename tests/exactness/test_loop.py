"""The compiled loop is exact, driven along every path of whole decodes of table models.

`checks` has further loops. test_mutations.py runs them with and without planted faults.
"""

import dataclasses
import functools
import re
from collections.abc import Callable

import numpy as np
import pytest

from specdec_t5x.contrib.truncation import Truncation
from specdec_t5x.core.distributions import GREEDY, Sampling
from specdec_t5x.core.tree import Tree, chain
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.pruned import Pruned
from specdec_t5x.drafters.tree_draft import delayed
from specdec_t5x.network.functional import resized
from specdec_t5x.network.heads import HeadsConfig
from tests.contrib.link.local import Liar, Local, drafting_of, honest
from tests.exactness.distributions import adjusted
from tests.exactness.driving import (
  Loop,
  assert_all_are,
  assert_the_loop_is_exact,
  difference,
  driven_probs,
  loop_paths,
)
from tests.exactness.enumeration import has_end, outputs_of, target_probs
from tests.exactness.lengths import turns
from tests.hash_model import (
  MODULUS,
  HashHeads,
  HashModel,
  SparseHash,
  place_weights,
  sequence_probs,
)

TARGET, DRAFT = (HashModel(seed, vocab_size=4, eos_bias=-0.5) for seed in (1, 2))
SMALL_TARGET, SMALL_DRAFT = (HashModel(seed, vocab_size=3) for seed in (3, 4))
PAIR = TARGET, DRAFT
SMALL = SMALL_TARGET, SMALL_DRAFT
# Outputs without end; the only path mixes drafts and plain turns.
GREEDY_PAIR = tuple(HashModel(seed, 4, eos_bias=-30.0) for seed in (1, 2))
# An EOS token in a prompt, even in the last place, ends nothing.
PROMPTED = tuple(
  HashModel(seed, vocab_size=3, eos_bias=-0.5, prompt=(2, 2, 1)) for seed in (3, 4)
)
# The heads' distributions do not depend on the drafted tokens.
APART = HashHeads(7, 3, HeadsConfig("medusa", 2, 1))
HEADS = SMALL_TARGET, APART

# ---- Policies. ----

# The prior is weak: the result of one draft changes the length of the next draft.
LEARNING = CostAware((1.0, 1.18, 1.36, 1.49), 0.5, 1.0, decay=0.9, by_row=True)
# Drafts two tokens, or one token after a failed draft.
SHORT = CostAware((1.0, 1.01, 1.3), 0.8, prior_weight=1.0, by_row=True)
# Takes two plain turns after a failed draft, then drafts again; drafts three tokens
# after a success.
TURNS = CostAware((1.0, 1.35, 1.55, 1.8), 0.5, prior_weight=1.0, decay=0.5)
# After one failed draft, the target continues without drafts.
PAYING = CostAware((1.0, 1.4), 0.5, prior_weight=1.0)
BY_LENGTH = CostAware((1.0, 1.3, 1.4), 0.5, prior_weight=1.0)


def lengths_differ(lengths):
  return len({tuple(each[:2]) for each in lengths}) > 1


def turns_change(lengths):
  """Returns whether a draft, several plain turns and a draft follow each other."""
  texts = ["".join(map(str, each)) for each in lengths]
  return any(re.search("[123]00+[123]", x) and set(x) >= set("012") for x in texts)


def drafts_stop(lengths):
  """Returns whether heads rest before the first call, draft, and draft no more."""
  return any(len(each) > 3 and each[1] and not each[-1] for each in lengths)


# ---- Drafts with a different number of vocabulary rows. ----


@dataclasses.dataclass(frozen=True)
class Padded(HashModel):
  """A draft with a different number of rows, resized to the target's like a decoder."""

  def extend(self, *args, **words):
    logits, features, cache = super().extend(*args, **words)
    return resized(logits, TARGET.vocab_size), features, cache

  def distribution(self, sampling):
    """The distribution over the target's tokens, in float64."""
    table = self.table.astype(float)
    weights = place_weights(64)

    @functools.cache
    def distribution(output):
      terms = [(token + 1) * weights[i] for i, token in enumerate((0, *output))]
      row = table[sum(terms) % MODULUS][: TARGET.vocab_size]
      lacking = np.full(TARGET.vocab_size - row.size, -np.inf)
      return adjusted(np.concatenate([row, lacking]), sampling)

    return distribution


def padded(rows):
  return TARGET, Padded(seed=2, vocab_size=rows, eos_bias=-0.5)


# ---- The loops. ----


def truncated(*cut):
  return TARGET, SparseHash(DRAFT, Truncation(*cut))


def linked(answer, cut):
  return SMALL_TARGET, SparseHash(SMALL_DRAFT, cut, Local.of(answer))


@dataclasses.dataclass(frozen=True)
class Case:
  """A loop, the sampling, and a property of the drafts' lengths of unended paths."""

  loop: Loop
  sampling: Sampling = Sampling()  # noqa: RUF009, a constant
  shows: Callable | None = None


SETTING = Loop(*PAIR, "token", chain(2), 4)
TOP_K, TOP_P = Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.7)
CASES = {
  "token": Case(SETTING),
  "block": Case(Loop(*PAIR, "block", chain(2), 4), Sampling(0.6)),
  # Seven tokens never fit.
  "room for less than a draft": Case(Loop(*SMALL, "token", chain(7), 4)),
  "greedy tree": Case(Loop(*SMALL, "kseq", delayed(0, 2, 2), 4), GREEDY),
  "recursive": Case(Loop(*SMALL, "recursive", delayed(0, 2, 2), 4), TOP_P),
  # Policies.
  "a length per row": Case(
    Loop(*PAIR, "block", chain(2), 4, policy=SHORT), Sampling(0.6), lengths_differ
  ),
  "up to three tokens": Case(
    Loop(*PAIR, "block", chain(3), 5, policy=LEARNING), TOP_P, lengths_differ
  ),
  "plain turns": Case(
    Loop(*PAIR, "block", chain(3), 7, policy=TURNS), TOP_P, turns_change
  ),
  "greedy plain turns": Case(
    Loop(*GREEDY_PAIR, "token", chain(3), 24, policy=TURNS), GREEDY, turns_change
  ),
  # Prompts.
  "a prompt, a tree": Case(
    Loop(*PROMPTED, "traversal", delayed(1, 2, 2), 3, "distinct")
  ),
  "a prompt, a policy": Case(
    Loop(
      *(*PROMPTED, "block", chain(2), 4),
      policy=CostAware((1.0, 1.7, 2.4), by_row=True),
    ),
    Sampling(0.7),
  ),
  # Drafts of 3 to 9 vocabulary rows for a target of 4.
  "3 rows": Case(Loop(*padded(3), "block", chain(2), 3), Sampling(0.7)),
  "5 rows": Case(
    Loop(*padded(5), "recursive", delayed(0, 2, 1), 3), Sampling(top_p=0.9)
  ),
  "9 rows": Case(Loop(*padded(9), "token", chain(2), 3)),
  # Truncated drafts.
  "the likeliest token": Case(Loop(*truncated(1), "block", chain(2), 4)),
  "rounded": Case(Loop(*truncated(0), "token", chain(2), 4), TOP_P),
  "part of the mass": Case(Loop(*truncated(4, 0.7), "token", chain(2), 4)),
}
SLOW = {
  "a tree": Case(Loop(*SMALL, "traversal", delayed(1, 2, 2), 4, "likeliest")),
  "a tree on the second": Case(
    Loop(*SMALL, "recursive", Tree((0, 0, 2)), 4, "distinct")
  ),
  "heads, block": Case(Loop(*HEADS, "block", chain(2), 4), Sampling(0.7, top_k=2)),
  "heads, kseq": Case(Loop(*HEADS, "kseq", delayed(0, 2, 1), 4)),
  "heads, recursive": Case(Loop(*HEADS, "recursive", Tree((0, 0, 1)), 4, "likeliest")),
  "heads, traversal": Case(Loop(*HEADS, "traversal", Tree((0, 0, 1)), 4, "likeliest")),
  "heads, distinct": Case(Loop(*HEADS, "traversal", Tree((0, 0, 2)), 4, "distinct")),
  "heads of varying length": Case(
    Loop(*HEADS, "token", chain(2), 5, policy=SHORT),
    shows=lambda lengths: {1, 2} <= {n for each in lengths for n in each},
  ),
  "heads that stop paying": Case(
    Loop(*HEADS, "block", chain(2), 5, "distinct", BY_LENGTH), shows=drafts_stop
  ),
  "a tree that stops paying": Case(
    Loop(*HEADS, "recursive", Tree((0, 0, 1)), 5, "distinct", PAYING), shows=drafts_stop
  ),
}


@pytest.mark.parametrize(
  "case",
  [
    *(pytest.param(case, id=name) for name, case in CASES.items()),
    *(pytest.param(x, id=name, marks=pytest.mark.slow) for name, x in SLOW.items()),
  ],
)
def test_the_loop_keeps_the_target_s_distribution(case):
  assert_the_loop_is_exact(case.loop, case.sampling)
  if case.shows:
    setting, paths = loop_paths(case.loop, case.sampling)
    unended = [path for path in paths if not has_end(path.result, setting)]
    assert case.shows([turns(path, case.loop.tree.size) for path in unended])


@pytest.mark.parametrize(
  ("loop", "ends"),
  [
    (SETTING, (1, 3)),
    # 0 is a regular token here.
    (SETTING, (3, 0, 1)),
    (Loop(*PAIR, "block", chain(2), 3), (3, 0, 1)),
    (Loop(*SMALL, "recursive", delayed(0, 2, 2), 3), (0, 1)),
  ],
  ids=["token", "token, three", "block", "recursive"],
)
def test_the_first_of_several_end_tokens_ends_an_output(loop, ends):
  loop = loop._replace(eos_id=ends)
  assert_the_loop_is_exact(loop, Sampling())
  _, paths = loop_paths(loop, Sampling())
  last_tokens = {path.result[-1] for path in paths}
  assert last_tokens == set(range(loop.target.vocab_size))


def test_the_setting_has_several_iterations_rejections_and_ends():
  setting, paths = loop_paths(SETTING, Sampling())
  outputs = [path.result for path in paths]
  assert max(at[0] for path in paths for at in path.cells) == 3
  assert any(1 in output and len(output) < 4 for output in outputs)
  assert any(1 not in output for output in outputs)
  assert len(set(outputs)) == len(target_probs(setting))
  assert len(outputs) > 5 * len(set(outputs))
  np.testing.assert_allclose(sum(path.probability for path in paths), 1)


def test_the_prompt_matters():
  plain = dataclasses.replace(PROMPTED[0], prompt=())
  models = PROMPTED[0], plain
  assert difference(*(sequence_probs(x, Sampling(), 4) for x in models)) > 0.05


@pytest.mark.slow
def test_the_pruned_tree_of_one_head_has_the_likeliest_tokens():
  one = HashHeads(4, 3, HeadsConfig("medusa", 1, 1))
  loop = Loop(SMALL_TARGET, one, "recursive", Tree((0, 0)), 4, "likeliest")
  decoding, paths = loop_paths(loop, Sampling())
  drafter = HeadDraft(one, Pruned(2, width=3, ranks=3))
  outputs = driven_probs(paths, SMALL_TARGET, drafter, Sampling(), "recursive", 4)
  assert_all_are(outputs, outputs_of(decoding))


def test_a_link_keeps_the_distribution():
  target, draft = linked(honest(SMALL_DRAFT), Truncation(0))
  assert_the_loop_is_exact(Loop(target, draft, "token", chain(2), 4), TOP_P)
  counts = draft.remote.counts()
  assert counts["requests"] >= 2
  assert counts["lost"] == 0


def test_a_link_keeps_the_distribution_if_the_remote_drew_from_another_distribution():
  """The local side redraws tokens from the distributions that the remote sent."""
  target, draft = linked(drafting_of(SMALL_DRAFT, Liar).answer, Truncation(2))
  assert_the_loop_is_exact(Loop(target, draft, "token", chain(1), 3), Sampling())
  assert draft.remote.counts()["lost"] == 0
