"""Alpha over requests while a draft learns, on a tiny random pair."""

import pytest

from specdec_t5x.bench import online
from specdec_t5x.bench.online import CONTROL
from tests.bench.conftest import ran

SHORT = (
  *("--requests=6", "--window=3", "--interval=3", "--kept=4", "--gamma=2"),
  *("--max-length=10", "--input-length=32", "--learning-rate=0.02"),
)


def test_each_way_has_its_alpha_beside_the_control_s(domains, tmp_path, monkeypatch):
  pytest.importorskip("matplotlib")
  rows = ran("online", tmp_path, *domains, *SHORT, "--chart")["rows"]
  assert (tmp_path / "online.svg").exists()
  ways = [(r["learns"], r["domain"], r["first"], r["last"]) for r in rows]
  assert ways == [
    (way, domain, first, first + 3)
    for way in (CONTROL, "forward_kl", "reverse_kl")
    for domain in ("one", "two")
    for first in (0, 3)
  ]
  first = {way: r["alpha"] for r in reversed(rows) if (way := r["learns"])}
  # Nothing is learned before the first requests are served.
  assert first[CONTROL] == first["forward_kl"] == first["reverse_kl"]
  for row in rows:
    if row["learns"] != CONTROL:
      assert row["equal"] == "3 of 3"
  assert any(row["over_control"] for row in rows)
  # What was measured is not measured again.
  monkeypatch.setattr(online, "_serve", None)
  assert ran("online", tmp_path, *domains, *SHORT)["rows"] == rows
