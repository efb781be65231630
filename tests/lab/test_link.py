"""A draft in another process: bits, alpha and speed by number of kept tokens."""

from specdec_t5x.contrib.truncation import probs_bits
from tests.lab.conftest import ran


def test_every_k_has_bits_alpha_and_speed(pair, tmp_path):
  flags = "--gamma=2 --batch=2 --max-length=12 --num-inputs=2 --num-timed=2"
  flags += " --top-k 2 0 --mbits 100"
  rows = ran("link", tmp_path, *pair, *flags.split())["rows"]
  assert [row["kept"] for row in rows] == ["-", "all, float32", 2, "all, 64"]
  expected = (6, None, probs_bits(2, 64), probs_bits(64, 64))
  numbers = (1, None, 1 + 2 * 2, 1 + 64)
  for row, bits, count in zip(rows, expected, numbers, strict=True):
    assert row["bits"] == bits
    assert 0 <= row["alpha"]["value"] <= 1
    if bits:
      # A message has 16 bits per number, and less than 32 bytes of overhead.
      assert 16 * count <= row["received"] <= 16 * count + 32 * 8 / 2
      assert row["speedup_100_mbits"]["median"] > 0
