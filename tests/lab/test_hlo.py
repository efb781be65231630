"""Trip counts of the loops in a compiled program's text."""

import pathlib

import pytest

from lab.model.hlo import Program

PROGRAM = pathlib.Path(__file__).with_name("tpu.hlo").read_text()
COUNT = ', backend_config={"known_trip_count":{"n":"7"}}'
UNTIL = "condition=%until, body=%inner"
# A condition from a TPU: the counter of a scan against a constant.
CONDITION = """
%until (s: (s32[])) -> pred[] {
  %limit = s32[]{:T(128)} constant(7)
  %s = (s32[]{:T(128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%s), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}
"""


def turns(text):
  """Returns the trip count of the loop with the body `inner`."""
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


def test_the_trip_count_is_read_from_the_configuration():
  assert turns(PROGRAM) == 7
  assert len(Program.read(PROGRAM).open_loops()) == 1


@pytest.mark.parametrize(
  ("change", "expected"),
  [
    (("", ""), 7),
    (("constant(7)", "constant(12)"), 12),
    (("direction=LT", "direction=GT"), None),
    # The limit is an argument or a computed number.
    (("constant(7)", "get-tuple-element(%s), index=1"), None),
  ],
)
def test_else_the_trip_count_is_read_from_the_condition(change, expected):
  text = PROGRAM.replace(f"condition=%stop, body=%inner{COUNT}", UNTIL)
  assert text != PROGRAM
  assert turns(text + CONDITION.replace(*change)) == expected
