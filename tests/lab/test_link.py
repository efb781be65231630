"""A draft in another process: bits, alpha and speeds of each number of kept tokens."""

from specdec_t5x.contrib.truncation import probs_bits
from tests.lab.conftest import ran


def test_every_k_of_a_link_has_its_bits_alpha_and_speed(pair, tmp_path):
  flags = "--gamma=2 --batch=2 --max-length=12 --num-inputs=2 --num-timed=2"
  flags += " --top-k 2 0 --mbits 100"
  rows = ran("link", tmp_path, *pair, *flags.split())["rows"]
  assert [row["kept"] for row in rows] == ["-", "all, float32", 2, "all, 64"]
  expected = (6, None, probs_bits(2, 64), probs_bits(64, 64))
  for row, bits in zip(rows, expected, strict=True):
    assert row["bits"] == bits
    assert 0 <= row["alpha"]["value"] <= 1
    if bits:
      # A reply's head is 7 bytes, its last byte is filled up.
      assert bits <= row["received"] <= bits + (7 * 8 + 7) / 2
      assert row["speedup_100_mbits"]["median"] > 0
