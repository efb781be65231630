"""Collectives in a program's text, counted by hand."""

from specdec_t5x.analysis.collectives import count_collectives

PROGRAM = """HloModule jit_decode, num_partitions=4

%add (x: f32[], y: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%x, %y)
}

%draft_body (state: f32[8]) -> f32[8] {
  %reduced = f32[8]{0} all-reduce(%state), replica_groups={{0,1}}, to_apply=%add
}

%true_branch (state: f32[8]) -> f32[8] {
  ROOT %permuted = f32[8]{0} collective-permute(%state), source_target_pairs={{0,1}}
}

%loop_body (state: f32[8]) -> f32[8] {
  %draft = f32[8]{0} while(%state), condition=%draft_condition, body=%draft_body, \
backend_config={"known_trip_count":{"n":"7"},"known_init_step":{"init":"0"}}
  %scored = (f32[8]{0}, f32[8]{0}) all-reduce-start(%draft), to_apply=%add
  %done = f32[8]{0} all-reduce-done(%scored)
  %kept = f32[8] conditional(%p), branch_computations={%true_branch, %add}
  ROOT %gathered = f32[32]{0} all-gather(%done), dimensions={0}
}

%loop_condition (state: f32[8]) -> pred[] {
  ROOT %any = pred[] all-reduce(%ended), to_apply=%add
}

ENTRY %main (tokens: f32[8]) -> f32[8] {
  %encoded = f32[8]{0} reduce-scatter(%tokens), dimensions={0}, to_apply=%add
  ROOT %decoded = f32[8]{0} while(%encoded), condition=%loop_condition, \
body=%loop_body
}
"""


def test_an_iteration_is_the_decoding_loop_s_with_inner_loops_unrolled():
  counts = count_collectives(PROGRAM)
  assert counts["iteration"] == {
    "all-reduce": 7 + 1,
    "all-gather": 1,
    "collective-permute": 1,
  }


def test_a_draft_s_scan_is_unrolled_where_only_its_condition_has_the_count():
  known = (
    ', backend_config={"known_trip_count":{"n":"7"},"known_init_step":{"init":"0"}}'
  )
  assert PROGRAM.count(known) == 1
  condition = """
%draft_condition (state: (s32[])) -> pred[] {
  %limit = s32[] constant(7)
  %state = (s32[]) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}
"""
  unsaid = PROGRAM.replace("known_trip_count", "unknown")
  assert unsaid != PROGRAM
  assert count_collectives(unsaid + condition) == count_collectives(PROGRAM)


def test_the_rest_is_what_happens_once():
  # A condition is no part of an iteration's body.
  assert count_collectives(PROGRAM)["once"] == {"reduce-scatter": 1, "all-reduce": 1}
