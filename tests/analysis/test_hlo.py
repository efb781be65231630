"""How often the loops of a compiled program turn, as its text says."""

import pathlib

import pytest

from specdec_t5x.analysis.hlo import Program

PROGRAM = pathlib.Path(__file__).with_name("tpu.hlo").read_text()
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


def turns(text):
  """Returns the turns of the loop whose body is `inner`."""
  program = Program.read(text)
  every = (each for lines in program.computations.values() for each in lines)
  return next(
    program.turns(each)
    for each in every
    if each.opcode == "while" and each.body == "inner"
  )


def test_a_program_without_an_open_loop_is_refused():
  text = "ENTRY %main (x: f32[8]) -> f32[8] {\n  ROOT %y = f32[8] neg(%x)\n}"
  with pytest.raises(ValueError, match="decoding loop"):
    Program.read(text).open_loops()


def test_a_loop_s_turns_are_in_its_configuration():
  assert turns(PROGRAM) == 7
  assert len(Program.read(PROGRAM).open_loops()) == 1


@pytest.mark.parametrize(
  ("change", "expected"),
  [
    (("", ""), 7),
    (("constant(7)", "constant(12)"), 12),
    (("direction=LT", "direction=GT"), None),
    # Counted to a number that the program is given, or finds out.
    (("constant(7)", "get-tuple-element(%s), index=1"), None),
  ],
)
def test_a_loop_s_turns_are_in_its_condition_where_the_text_has_no_count(
  change, expected
):
  unsaid = PROGRAM.replace(f"condition=%stop, body=%inner{COUNT}", UNTIL)
  assert unsaid != PROGRAM
  assert turns(unsaid + CONDITION.replace(*change)) == expected
