"""Known traps, each planted: the checks of exactness must notice every one.

A trap that its check does not notice fails here; without a trap all checks pass.
"""

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.core import (
  block,
  distributions,
  kseq,
  recursive,
  token,
  traversal,
)
from specdec_t5x.core.block import Block
from specdec_t5x.core.token import Token
from specdec_t5x.decoding import baseline, step, widths
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters import adaptive, cascade, draft_model, siblings, sparse
from specdec_t5x.drafters.adaptive import AdaptiveDraft
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.heads import HeadDraft
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network import cache
from tests.exactness import faults
from tests.exactness.checks import (
  BLOCK_RULE,
  CHECKS,
  KSEQ_RULE,
  RECURSIVE_RULE,
  TOKEN_RULE,
  TRAVERSAL_RULE,
  adaptive_loop,
  candidates_loop,
  copying,
  counts,
  draws,
  exit_loop,
  heads_chain,
  heads_tree,
  laws_apart_by_rounding,
  moved_entries,
  perfect_draft,
  perfect_hierarchy,
  shared_length,
  siblings_loop,
  skipping_loop,
  small_trees,
  sparse_loop,
  token_loop,
  transformers,
  turns_loop,
  wide_loop,
  windows_fixed,
  windows_flushed,
)
from tests.hash_model import TokenCache


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_without_a_trap_the_check_passes(check):
  check()


# ---- The traps: where each is planted, and what is planted there. ----

TRAPS = [
  (
    "argmax draft with soft q",
    draft_model,
    "draw",
    faults.argmax_draft_with_soft_q,
    token_loop,
  ),
  ("residual not masked", token, "residual", faults.target_law_as_residual, TOKEN_RULE),
  (
    "residual not clipped at zero",
    token,
    "residual",
    faults.residual_not_clipped,
    TOKEN_RULE,
  ),
  (
    "residual without mass undefined",
    token,
    "residual",
    faults.residual_without_mass_is_nothing,
    laws_apart_by_rounding,
  ),
  ("missing bonus token", step, "commit", faults.no_bonus_token, perfect_draft),
  ("stale cache after rollback", TokenCache, "at", faults.identity, token_loop),
  (
    "one cache index for all rows",
    TokenCache,
    "at",
    faults.one_index_for_all_rows,
    token_loop,
  ),
  (
    "cache writes that add, as T5X's do",
    cache,
    "write",
    faults.write_adds,
    transformers,
  ),
  (
    "draft cache without the last drafted token",
    draft_model,
    "read_last",
    faults.draft_reads_the_last_token_alone,
    perfect_draft,
  ),
  (
    "top-p applied to p only",
    draft_model,
    "draw",
    faults.ignore_top_p,
    perfect_draft,
  ),
  (
    "drawn from the whole law, truncated afterwards",
    sparse,
    "drafted_sparsely",
    faults.draws_from_the_whole_law,
    sparse_loop,
  ),
  (
    "rounded after the draw",
    sparse,
    "drafted_sparsely",
    faults.rounds_after_the_draw,
    sparse_loop,
  ),
  (
    "q of another position",
    token.chain,
    "draft_law_at",
    faults.q_of_the_position_before,
    TOKEN_RULE,
  ),
  (
    "accepted tokens after a rejected one",
    Token,
    "verify",
    faults.verify_all_the_tokens_apart,
    TOKEN_RULE,
  ),
  (
    "one uniform for test and recovered token",
    Token,
    "verify",
    faults.verify_with_one_uniform_twice,
    TOKEN_RULE,
  ),
  (
    "one uniform for all levels",
    distributions,
    "sample",
    faults.one_uniform_for_all_levels,
    wide_loop,
  ),
  (
    "the chosen draft's entries in two wrong places",
    TokenCache,
    "gathered",
    faults.two_places_swapped,
    moved_entries,
  ),
  (
    "end of sequence unseen inside a block",
    step,
    "commit",
    faults.end_of_sequence_unseen_in_a_draft,
    token_loop,
  ),
  (
    "rows that have ended go on",
    step,
    "commit",
    faults.rows_that_have_ended_go_on,
    counts,
  ),
  (
    "copying from the output alone",
    Copy,
    "propose",
    faults.copy_from_the_output_alone,
    copying,
  ),
  ("gamma larger than the room left", step, "limit", faults.no_limit_by_room, counts),
  (
    "rows leak: one draw for all",
    DecodeState,
    "uniforms",
    faults.rows_share_their_draws,
    draws,
  ),
  (
    "the same draws each iteration",
    DecodeState,
    "uniforms",
    faults.same_draws_each_iteration,
    draws,
  ),
  (
    "rho = 1 with k > 1",
    kseq,
    "least_rho",
    lambda p, q, count: jnp.array(1.0),
    KSEQ_RULE,
  ),
  ("k-SEQ recovers from p", kseq, "residual", faults.target_law_as_residual, KSEQ_RULE),
  (
    "recursion that keeps p",
    recursive,
    "residual",
    faults.target_law_as_residual,
    RECURSIVE_RULE,
  ),
  (
    "weights of before a sibling's rejection",
    traversal,
    "_without",
    faults.weights_as_they_were,
    TRAVERSAL_RULE,
  ),
  (
    "siblings' laws not renormalised",
    siblings,
    "_without",
    faults.sibling_s_law_not_renormalised,
    siblings_loop,
  ),
  (
    "the first sibling's law for all",
    TreeDraft,
    "propose",
    faults.first_sibling_s_law_for_all,
    siblings_loop,
  ),
  (
    "heads on the root's feature",
    HeadDraft,
    "commit",
    faults.heads_on_the_root_s_feature,
    heads_chain,
  ),
  (
    "heads that read the first sibling's path",
    HeadDraft,
    "_path_reader",
    faults.heads_read_the_first_sibling,
    heads_tree,
  ),
  (
    "drafts that are copies",
    TreeDraft,
    "propose",
    faults.drafts_share_their_draws,
    candidates_loop,
  ),
  (
    "nodes see cousins",
    step,
    "score",
    faults.nodes_see_cousins,
    small_trees,
  ),
  (
    "positions by slot",
    step,
    "score",
    faults.positions_by_slot,
    small_trees,
  ),
  (
    "the chosen draft's entries not moved",
    TokenCache,
    "gathered",
    faults.unmoved,
    candidates_loop,
  ),
  (
    "the draft's cache not moved",
    TreeDraft,
    "commit",
    faults.uncommitted,
    candidates_loop,
  ),
  (
    "block stops at a failure",
    Block,
    "verify",
    faults.first_failure_ends_the_block,
    BLOCK_RULE,
  ),
  (
    "block without its weight",
    block,
    "residual",
    faults.unweighted_block_residual,
    BLOCK_RULE,
  ),
  (
    "a token's own value drops it",
    AdaptiveDraft,
    "propose",
    faults.drop_the_doubtful_token,
    adaptive_loop,
  ),
  (
    "a shared length that the drawn token decides",
    AdaptiveDraft,
    "propose",
    faults.drop_what_it_drew,
    turns_loop,
  ),
  (
    "a shared length that a row's drawn token decides",
    AdaptiveDraft,
    "propose",
    faults.drop_what_it_drew,
    shared_length,
  ),
  (
    "a plain turn whose draws are used again",
    baseline,
    "step",
    faults.plain_turn_leaves_its_draws,
    turns_loop,
  ),
  (
    "a draft that does not read what it missed",
    adaptive,
    "_read",
    faults.draft_reads_the_last_two_alone,
    turns_loop,
  ),
  (
    "a plain turn that does not let counts decay",
    AdaptiveDraft,
    "rested",
    faults.plain_turn_is_not_counted,
    turns_loop,
  ),
  (
    "a window without its correction",
    Cascade,
    "_proposal",
    faults.window_without_its_correction,
    windows_flushed,
  ),
  (
    "a window's laws one place off",
    Cascade,
    "_proposal",
    faults.window_s_laws_one_place_off,
    windows_fixed,
  ),
  (
    "a correction judged by its residual",
    step,
    "judge",
    faults.correction_by_its_residual,
    windows_fixed,
  ),
  (
    "a correction that ends a window judged by its residual",
    step,
    "judge",
    faults.correction_by_its_residual,
    windows_flushed,
  ),
  (
    "a middle network that does not read what it missed",
    cascade,
    "_reading_before",
    faults.block_alone,
    windows_fixed,
  ),
  (
    "a lowest draft that does not read what two verdicts added",
    draft_model,
    "read_last",
    faults.draft_reads_two_whatever_is_above,
    perfect_hierarchy,
  ),
  (
    "block too narrow for the bonus token",
    widths,
    "narrowest",
    faults.no_place_for_the_last_token,
    adaptive_loop,
  ),
  (
    "the token that an exit stopped at dropped",
    AdaptiveDraft,
    "propose",
    faults.drop_the_token_it_stopped_at,
    exit_loop,
  ),
  (
    "the draft's keys in the target's cache",
    step,
    "_score",
    faults.the_draft_s_keys_stay,
    skipping_loop,
  ),
]


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap[0].replace(" ", "-"))
def test_the_trap_is_noticed(trap, monkeypatch, request):
  _, place, name, fault, check = trap
  monkeypatch.setattr(place, name, fault)
  if place is cache:  # Layers are traced once: this fault is for no other test.
    jax.clear_caches()
    request.addfinalizer(jax.clear_caches)
  with pytest.raises(AssertionError):
    check()
