"""Known traps: places in the code, faults, and the checks that notice the faults."""

from specdec_t5x.contrib import sparse
from specdec_t5x.core import distributions
from specdec_t5x.core.rules import (
  block,
  coupled,
  kseq,
  recursive,
  token,
  traversal,
)
from specdec_t5x.core.rules.block import Block
from specdec_t5x.core.rules.token import Token
from specdec_t5x.decoding import loop
from specdec_t5x.decoding.contracts import Context
from specdec_t5x.decoding.policies import CostAware
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters import cascade, draft_model, siblings
from specdec_t5x.drafters.cascade import Cascade
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import Stepwise
from specdec_t5x.drafters.eagle import EagleDraft
from specdec_t5x.drafters.heads import HeadDraft, Headed
from specdec_t5x.drafters.tree_draft import TreeDraft
from specdec_t5x.network import cache, functional
from specdec_t5x.network.eagle import EagleDrafter
from tests.exactness import draft_faults as drafts
from tests.exactness import faults
from tests.exactness.planting import Trap
from tests.hash_model import TokenCache

TRAPS = [
  Trap(draft_model, "draw", drafts.argmax_draft_with_soft_q, "token_loop"),
  Trap(token, "residual", faults.target_probs_as_residual, "token_rule"),
  Trap(token, "residual", faults.residual_not_clipped, "token_rule"),
  Trap(
    token,
    "residual",
    faults.residual_without_mass_is_nothing,
    "probs_apart_by_rounding",
  ),
  Trap(loop, "commit", faults.no_bonus_token, "perfect_draft"),
  Trap(TokenCache, "at", faults.stale_cache_after_rollback, "token_loop"),
  Trap(TokenCache, "at", faults.one_index_for_all_rows, "token_loop"),
  Trap(cache, "write", faults.write_adds, "transformers", alone=True),
  Trap(
    draft_model, "read_last", drafts.draft_reads_the_last_token_alone, "perfect_draft"
  ),
  Trap(draft_model, "draw", drafts.ignore_top_p, "perfect_draft"),
  Trap(Stepwise, "propose", drafts.q_not_renormalised, "token_loop"),
  Trap(sparse, "drafted_sparsely", drafts.draws_from_the_whole_probs, "sparse_loop"),
  Trap(sparse, "drafted_sparsely", drafts.rounds_after_the_draw, "sparse_loop"),
  Trap(token, "draft_probs_at", faults.q_of_the_position_before, "token_rule"),
  Trap(Token, "verify", faults.verify_all_the_tokens_apart, "token_rule"),
  Trap(Token, "verify", faults.verify_with_one_uniform_twice, "token_rule"),
  Trap(distributions, "sample", faults.one_uniform_for_all_levels, "wide_loop"),
  Trap(TokenCache, "gathered", faults.two_places_swapped, "moved_entries"),
  Trap(loop, "commit", faults.end_of_sequence_unseen_in_a_draft, "token_loop"),
  Trap(loop, "commit", faults.rows_that_have_ended_go_on, "counts"),
  Trap(Copy, "propose", drafts.copy_from_the_output_alone, "copying"),
  Trap(Context, "draft_lengths", faults.no_limit_by_what_remains, "counts"),
  Trap(DecodeState, "uniforms", faults.rows_share_their_draws, "draws"),
  Trap(DecodeState, "uniforms", faults.same_draws_each_iteration, "draws"),
  Trap(kseq, "least_rho", faults.rho_is_one, "kseq_rule"),
  Trap(kseq, "residual", faults.target_probs_as_residual, "kseq_rule"),
  Trap(recursive, "residual", faults.target_probs_as_residual, "recursive_rule"),
  Trap(traversal, "_without", faults.weights_as_they_were, "traversal_rule"),
  Trap(siblings, "_without", faults.sibling_s_probs_not_renormalised, "siblings_loop"),
  Trap(TreeDraft, "propose", drafts.first_sibling_s_probs_for_all, "siblings_loop"),
  Trap(HeadDraft, "commit", drafts.heads_on_the_root_s_feature, "heads_chain"),
  Trap(Headed, "proposal", drafts.heads_drop_the_doubtful_token, "heads_chain"),
  Trap(Headed, "proposal", drafts.first_head_s_q_for_all, "heads_tree"),
  Trap(TreeDraft, "propose", drafts.drafts_share_their_draws, "candidates_loop"),
  Trap(loop, "score_tree", faults.nodes_see_cousins, "small_trees"),
  Trap(loop, "score_tree", faults.positions_by_slot, "small_trees"),
  Trap(TokenCache, "gathered", drafts.entries_are_not_moved, "candidates_loop"),
  Trap(TreeDraft, "commit", drafts.draft_s_cache_is_not_moved, "candidates_loop"),
  Trap(Block, "verify", faults.first_failure_ends_the_block, "block_rule"),
  Trap(block, "residual", faults.unweighted_block_residual, "block_rule"),
  Trap(Stepwise, "propose", drafts.drop_the_doubtful_token, "turns_loop"),
  Trap(Stepwise, "propose", drafts.drop_what_it_drew, "turns_loop"),
  Trap(Stepwise, "propose", drafts.drop_what_it_drew, "shared_length"),
  Trap(loop, "plain_step", faults.plain_turn_leaves_its_draws, "turns_loop"),
  Trap(draft_model, "caught_up", drafts.draft_reads_the_last_two_alone, "turns_loop"),
  Trap(CostAware, "update", faults.plain_turn_is_not_counted, "turns_loop"),
  Trap(Cascade, "_proposal", drafts.window_without_its_correction, "windows_flushed"),
  Trap(Cascade, "_proposal", drafts.window_s_probs_one_place_off, "windows_fixed"),
  Trap(loop, "step", faults.correction_by_its_residual, "windows_fixed"),
  Trap(loop, "step", faults.correction_by_its_residual, "windows_flushed"),
  Trap(
    cascade,
    "_reading_before",
    drafts.middle_network_reads_the_block_alone,
    "windows_fixed",
  ),
  Trap(
    draft_model,
    "read_last",
    drafts.draft_reads_two_whatever_is_above,
    "perfect_hierarchy",
  ),
  Trap(loop, "narrowest", faults.no_place_for_the_last_token, "turns_loop"),
  Trap(loop, "limit", faults.least_likely_of_all_is_dropped, "shared_length"),
  Trap(loop, "score", faults.the_draft_s_keys_stay, "skipping_loop"),
  *(
    Trap(functional, "_read", fault, "encoder_shared")
    for fault in (
      drafts.draft_reads_the_row_before,
      drafts.draft_reads_features_one_place_on,
    )
  ),
  Trap(draft_model, "draw", drafts.q_of_all_tokens, "trimmed_draft"),
  Trap(EagleDraft, "commit", drafts.eagle_on_features_one_place_off, "eagle_loop"),
  Trap(
    EagleDrafter, "everywhere", drafts.steps_see_the_target_s_features, "eagle_loop"
  ),
  Trap(loop, "draws", faults.rule_has_the_noise_of_the_place_before, "coupled_loop"),
  Trap(loop, "draws", faults.draft_has_noise_of_its_own, "coupled_loop"),
  Trap(
    DecodeState, "uniforms_of_places", faults.noise_of_the_iteration, "coupled_loop"
  ),
  Trap(
    DecodeState, "uniforms_of_places", faults.same_noise_at_all_places, "coupled_loop"
  ),
  Trap(coupled, "race", faults.nodes_have_the_root_s_noise, "coupled_loop"),
]
