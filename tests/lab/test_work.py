"""The bytes that operations move, counted by hand in the text of a program."""

from lab.model import work
from lab.model.hlo import Program
from lab.model.work import Work
from tests.real_data import ROOT

# A TPU program: tiles of 8 x 128, S(1) on the chip, some estimates of cycles.
PROGRAM = Program.read((ROOT / "tests" / "lab" / "tpu.hlo").read_text())
ROW = 8 * 256 * 2  # A row of a table in tiles of 8 rows.
KERNEL = 256 * 128 * 2  # 100 columns lie in tiles of 128.
LOOP = 7 * 3 * 4 * 8


def test_a_turn_counts_bytes_in_large_memory_only():
  turn = work.turn(PROGRAM)
  # A slice of a table, an update in place, a prefetched kernel and a kernel in place;
  # two operands and a result, seven times.
  assert turn.moved == ROW + ROW + KERNEL + KERNEL + LOOP
  assert turn.cycles == 600 + 50 + 9000
  # Names, scalars and ends of copies are no operations.
  assert turn.operations == 4 + 7


def test_the_whole_program_has_one_turn_of_its_open_loop():
  once = Work(moved=2 * 4 * 8, operations=1)
  assert work.total(PROGRAM) == work.turn(PROGRAM) + once
