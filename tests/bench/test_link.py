"""Kept tokens against bits, alpha and time, on a tiny random pair and a real link."""

from specdec_t5x.core.sparse import probs_bits
from tests.bench.conftest import ran

SHORT = ("--gamma=2", "--batch=2", "--max-length=12", "--num-inputs=2")
KEPT = ("--top-k", "2", "0", "--mbits", "100")


def test_every_k_has_its_bits_alpha_and_speed(pair, tmp_path):
  rows = ran("link", tmp_path, *pair, *SHORT, *KEPT, "--num-timed=2")["rows"]
  kept = [row["kept"] for row in rows]
  assert kept == ["-", "all, float32", 2, "all, 64"]
  for row, bits in zip(
    rows, (6, None, probs_bits(2, 64), probs_bits(64, 64)), strict=True
  ):
    assert row["bits"] == bits
    assert 0 <= row["alpha"]["value"] <= 1
    if bits:
      # A reply's head is 7 bytes, its last byte is filled up.
      assert bits <= row["received"] <= bits + (7 * 8 + 7) / 2
      assert row["speedup_100_mbits"]["median"] > 0
