"""A certified head beside the whole one."""

import pytest

from specdec_t5x.native import library
from tests.bench.conftest import ran


@pytest.mark.skipif(bool(library.problem()), reason="needs the kernels")
def test_both_are_timed_and_say_the_same(tmp_path):
  flags = "--vocab-size=4000", "--width=64", "--runs=3", "--rows", "1", "3"
  rows = ran("head", tmp_path, *flags)["rows"]
  assert [row["rows"] for row in rows] == [1, 3]
  for row in rows:
    assert row["same"] == "True"
    assert 1 <= row["computed"] < 400
    assert row["speed"]["median"] > 0
