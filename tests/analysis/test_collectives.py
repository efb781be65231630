"""Collectives in a program's text, counted by hand."""

import pathlib

from specdec_t5x.analysis.collectives import count_collectives

PROGRAM = pathlib.Path(__file__).with_name("collectives.hlo").read_text()


def test_an_iteration_counts_the_decoding_loop_with_unrolled_inner_loops():
  counts = count_collectives(PROGRAM)
  assert counts["iteration"] == {
    "all-reduce": 7 + 1,
    "all-gather": 1,
    "collective-permute": 1,
  }


def test_collectives_outside_the_decoding_loop_happen_once():
  # A loop's condition is not part of an iteration's body.
  assert count_collectives(PROGRAM)["once"] == {"reduce-scatter": 1, "all-reduce": 1}
