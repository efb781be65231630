"""The certified head and the full head of a large vocabulary."""

import pytest

from specdec_t5x.native import library
from tests.lab.conftest import ran

pytestmark = pytest.mark.slow


@pytest.mark.skipif(bool(library.problem()), reason="needs the kernels")
def test_a_certified_head_and_the_full_head_are_timed_and_agree(tmp_path):
  flags = "--vocab-size=4000 --width=64 --runs=3 --rows 1 3"
  rows = ran("head", tmp_path, *flags.split())["rows"]
  assert [row["rows"] for row in rows] == [1, 3]
  for row in rows:
    assert row["same"] == "True"
    assert 1 <= row["computed"] < 400
    assert row["speed"]["median"] > 0
