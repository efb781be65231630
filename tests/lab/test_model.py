"""The model of absent devices: TPU programs read as text, and a CPU's programs."""

import argparse
import dataclasses
import json
import pathlib

import pytest

from benchmarks.paper import published
from lab.model import command, tables, work
from lab.model.devices import Device
from lab.model.hlo import Program
from lab.model.pieces import Cost, Piece
from lab.model.timed import Measured
from lab.model.topologies import described
from lab.model.work import Work
from specdec_t5x.core import theory
from tests.lab.conftest import ran


def test_a_missing_tpu_compiler_is_named():
  try:
    import libtpu  # noqa: F401
  except ImportError:
    with pytest.raises(ValueError, match="pip install libtpu"):
      described("v4:1x1x1")
  else:
    assert described("v4:1x1x1")[0].device_kind == "TPU v4"


TEXT = pathlib.Path(__file__).with_name("tpu.hlo").read_text()
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
  assert turns(TEXT) == 7
  assert len(Program.read(TEXT).open_loops()) == 1


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
  text = TEXT.replace(f"condition=%stop, body=%inner{COUNT}", UNTIL)
  assert text != TEXT
  assert turns(text + CONDITION.replace(*change)) == expected


# A TPU program: tiles of 8 x 128, S(1) on the chip, some estimates of cycles.
PROGRAM = Program.read(TEXT)
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


DEVICE = Device("ours", bandwidth=1e9, peak=1e12, clock=1e9)


def cost(moved=0, cycles=0, flops=0.0):
  return Cost(moved, 1, cycles, flops, 0, 0.0)


def costs():
  """Returns costs of XXL and small.

  XXL takes 10 ms for a token and 12 ms for 8 tokens. Small takes 0.2 ms for a token by
  the moved bytes and 0.4 ms by the cycles.
  """

  def call(size, width):
    return Piece("call", size, width)

  return {
    call("xxl", 1): cost(10_000_000),
    call("xxl", 2): cost(10_000_000),
    call("xxl", 8): cost(12_000_000),
    call("small", 1): cost(200_000, cycles=400_000),
    call("small", 2): cost(200_000, cycles=500_000),
  }


def modelled(topology, measured):
  args = argparse.Namespace(
    target="xxl", drafts=["small"], batches=[1], widths=[1, 2, 8], topology=topology
  )
  return tables.table(args, DEVICE, costs(), measured, {})


def test_table_2_follows_from_the_modelled_times():
  table = modelled("v4:1x1x1", {})
  (c,) = json.loads(table.json())["c"]
  assert (c["roofline"], c["cycles"]) == (0.02, None)
  assert (c["c"], c["ratio"], c["as_two"]) == pytest.approx((0.04, 2.0, 0.05))
  row = next(r for r in table.rows if r["gamma"] == 7)
  paper = published.numbers()["tables_2_and_4"][0]
  assert (row["alpha"], row["measured"]) == (paper["alpha"], paper["measured"])
  assert row["theorem"] == theory.walltime_improvement(row["alpha"], 7, 0.04)
  expected = theory.expected_tokens(row["alpha"], 7)
  assert row["with_block"] == pytest.approx(expected * 10 / (7 * 0.4 + 12))
  # Six tokens lie between the compiled widths 2 and 8.
  six = next(r for r in table.rows if r["gamma"] == 5)
  block = 10 + 2 * (6 - 2) / 6
  expected = theory.expected_tokens(six["alpha"], 5)
  assert six["with_block"] == pytest.approx(expected * 10 / (5 * 0.4 + block))


def test_advice_has_gamma_0_for_a_poor_draft():
  model = tables.Model(DEVICE, costs(), "xxl")
  assert model.best("small", 0.01, 1) == (0, 1.0)
  assert model.best("base", 0.75, 1) == (None, None)  # Not compiled.
  gamma, speed = model.best("small", 0.75, 1)
  assert (gamma, speed) == (5, model.speed("small", 5, 0.75))


def test_a_measured_piece_is_modelled_by_the_speed_of_its_products():
  token = Piece("call", "xxl", 1)
  slow = Measured(seconds=25e-3, bandwidth=0.5e9, peak=1e9)
  table = modelled("cpu", {token: slow})
  rows = json.loads(table.json())["pieces"]
  row = next(r for r in rows if (r["piece"], r["batch"]) == ("xxl, a token", 1))
  assert (row["roofline"], row["modelled"]) == pytest.approx((10, 20))
  assert row["ratio"] == pytest.approx(0.8)
  two = next(r for r in rows if r["piece"] == "xxl, 2 tokens")
  assert (two["modelled"], two["over"]) == pytest.approx((10, 0.5))
  # A low peak makes arithmetic the bound.
  busy = dataclasses.replace(slow, peak=1e6)
  model = tables.Model(
    DEVICE, {token: cost(10_000_000, flops=3e4)}, "xxl", {token: busy}
  )
  assert model.seconds(token) == pytest.approx(30e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("counted_clock", "small_device")
def test_a_cpu_s_pieces_are_modelled_and_timed(tmp_path, monkeypatch):
  flags = "--topology cpu --target tiny --drafts int4/32 --widths 1 4"
  flags += " --batches 1 --gamma 3 --input-length 8 --output-length 32 --runs 1"
  found = ran("model", tmp_path, *flags.split())
  pieces = {row["piece"]: row for row in found["pieces"]}
  assert set(pieces) == {
    *("tiny, a token", "tiny, 4 tokens", "tiny, encoder"),
    *("tiny in int4/32, a token", "tiny with int4/32, iteration of gamma 3"),
  }
  # A token reads the projection to logits and the kernels of the layer, little twice.
  kernels = 6 * 64 * 64 + 3 * 64 * 128 + 64 * 32_128
  assert 1 < pieces["tiny, a token"]["moved"] / (4 * kernels / 1e6) < 1.5
  # A number takes a byte or half a byte, and scales are added.
  rounded = pieces["tiny in int4/32, a token"]["moved"] / (kernels / 1e6)
  assert rounded < 1.5
  assert all(row["measured"] > 0 for row in found["pieces"])
  assert found["environment"]["device"].endswith(", measured, as cpu")
  # A second run compiles nothing.
  monkeypatch.setattr(command, "cost_of", None)
  again = ran("model", tmp_path, *flags.split())
  assert again["pieces"] == found["pieces"]
