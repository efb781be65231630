"""What operations move, counted by hand in a program's text."""

import pytest

from specdec_t5x.analysis.hlo import Program, Work

# A TPU's: tiles of 8 x 128, S(1) on the chip; estimates where the compiler gives them.
PROGRAM = """HloModule jit_run

%slice_inside (p.0: bf16[64,256], p.1: s32[]) -> bf16[1,256] {
  %p.0 = bf16[64,256]{1,0:T(8,128)(2,1)} parameter(0)
  %p.1 = s32[]{:T(128)} parameter(1)
  ROOT %row = bf16[1,256]{1,0:T(8,128)(2,1)S(1)} dynamic-slice(%p.0, %p.1, %p.1), \
dynamic_slice_sizes={1,256}
}

%update_inside (p.2: bf16[64,256], p.3: bf16[8,256]) -> bf16[64,256] {
  %p.2 = bf16[64,256]{1,0:T(8,128)(2,1)} parameter(0)
  %p.3 = bf16[8,256]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %zero = s32[] constant(0)
  ROOT %new = bf16[64,256]{1,0:T(8,128)(2,1)} dynamic-update-slice(%p.2, %p.3, %zero)
}

%product (p.4: bf16[8,256], p.5: bf16[256,100]) -> bf16[8,100] {
  %p.4 = bf16[8,256]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p.5 = bf16[256,100]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %out = bf16[8,100]{1,0:T(8,128)(2,1)S(1)} convolution(%p.4, %p.5)
}

%inner (s: f32[8]) -> f32[8] {
  %s = f32[8]{0:T(8)} parameter(0)
  ROOT %more = f32[8]{0:T(8)} add(%s, %s)
}

%body (state: (bf16[64,256], bf16[256,100])) -> (bf16[64,256]) {
  %state = (bf16[64,256]{1,0:T(8,128)(2,1)}, f32[8]{0:T(8)}) parameter(0)
  %table = bf16[64,256]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=0
  %n = s32[]{:T(128)} constant(3)
  %row = bf16[1,256]{1,0:T(8,128)(2,1)S(1)} fusion(%table, %n), kind=kLoop, \
calls=%slice_inside, backend_config={"window_config":{"estimated_cycles":"600"}}
  %put = bf16[64,256]{1,0:T(8,128)(2,1)} fusion(%table, %row), kind=kLoop, \
calls=%update_inside, backend_config={"window_config":{"estimated_cycles":"50"}}
  %w = bf16[256,100]{1,0:T(8,128)(2,1)} get-tuple-element(%state), index=1
  %begun = (bf16[256,100]{1,0:T(8,128)(2,1)S(1)}, bf16[256,100]{1,0:T(8,128)(2,1)}, \
u32[]{:S(2)}) copy-start(%w)
  %there = bf16[256,100]{1,0:T(8,128)(2,1)S(1)} copy-done(%begun)
  %scalar = f32[]{:T(128)S(6)} add(%a, %b)
  %f = f32[8]{0:T(8)} get-tuple-element(%state), index=2
  %looped = f32[8]{0:T(8)} while(%f), condition=%stop, body=%inner, \
backend_config={"known_trip_count":{"n":"7"}}
  ROOT %out = bf16[8,100]{1,0:T(8,128)(2,1)S(1)} fusion(%row, %w), kind=kOutput, \
calls=%product, backend_config={"window_config":{"estimated_cycles":"9000"}}
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0:T(8)} parameter(0)
  %once = f32[8]{0:T(8)} negate(%x)
  ROOT %decoded = f32[8]{0:T(8)} while(%once), condition=%stop, body=%body
}
"""
ROW = 8 * 256 * 2  # One row of a table in tiles of 8.
KERNEL = 256 * 128 * 2  # 100 columns lie in tiles of 128.
LOOP = 7 * 3 * 4 * 8


def test_a_turn_moves_what_is_in_the_large_memory_and_no_more():
  turn = Program.read(PROGRAM).turn()
  # The slice of a table, an update in place, a kernel fetched ahead and one read where
  # it lies; two operands and a result, seven times.
  assert turn.moved == ROW + ROW + KERNEL + KERNEL + LOOP
  assert turn.cycles == 600 + 50 + 9000


def test_operations_are_those_that_are_started():
  # Names, scalars and what ends a copy are none.
  assert Program.read(PROGRAM).turn().operations == 4 + 7


def test_the_whole_program_has_one_turn_of_its_open_loop():
  program = Program.read(PROGRAM)
  assert program.total() == program.turn() + Work(moved=2 * 4 * 8, operations=1)


def test_a_program_without_an_open_loop_has_no_turn():
  with pytest.raises(ValueError, match="decoding loop"):
    Program.read(
      "ENTRY %main (x: f32[8]) -> f32[8] {\n  ROOT %y = f32[8] neg(%x)\n}"
    ).turn()


COUNT = ', backend_config={"known_trip_count":{"n":"7"}}'
UNTIL = "condition=%until, body=%inner"
# A TPU's: the counter of a scan against a constant.
CONDITION = """
%until (s: (s32[])) -> pred[] {
  %limit = s32[]{:T(128)} constant(7)
  %s = (s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}
"""


@pytest.mark.parametrize(
  ("change", "turns"),
  [
    (("", ""), 7),
    (("direction=LT", "direction=GT"), 1),
    # Counted to a number that the program is given, or finds out.
    (("constant(7)", "get-tuple-element(%s), index=1"), 1),
  ],
)
def test_a_loop_s_turns_are_in_its_condition_where_the_text_has_no_count(change, turns):
  unsaid = PROGRAM.replace(f"condition=%stop, body=%inner{COUNT}", UNTIL)
  assert unsaid != PROGRAM
  program = Program.read(unsaid + CONDITION.replace(*change))
  assert program.turn().operations == 4 + turns
