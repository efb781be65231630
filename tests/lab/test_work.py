"""What operations move, counted by hand in a program's text."""

import pathlib

import pytest

from specdec_t5x.analysis.hlo import Program, Work

# A TPU's: tiles of 8 x 128, S(1) on the chip; estimates where the compiler gives them.
PROGRAM = pathlib.Path(__file__).with_name("tpu.hlo").read_text()
ROW = 8 * 256 * 2  # One row of a table in tiles of 8.
KERNEL = 256 * 128 * 2  # 100 columns lie in tiles of 128.
LOOP = 7 * 3 * 4 * 8


def test_a_turn_moves_what_is_in_the_large_memory_and_no_more():
  turn = Program.read(PROGRAM).turn()
  # The slice of a table, an update in place, a kernel fetched ahead and one read where
  # it lies; two operands and a result, seven times.
  assert turn.moved == ROW + ROW + KERNEL + KERNEL + LOOP
  assert turn.cycles == 600 + 50 + 9000
  # Names, scalars and what ends a copy are no operations.
  assert turn.operations == 4 + 7


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
