"""A draft that learns while serving: alpha over the control, and the figure."""

import pytest

from lab.online import command
from lab.online.command import CONTROL
from tests.lab.conftest import ran


def test_every_loss_has_alpha_and_the_gain_over_the_control(
  domains, tmp_path, monkeypatch
):
  pytest.importorskip("matplotlib")
  flags = "--requests=6 --window=3 --interval=3 --kept=4 --gamma=2 --max-length=10"
  flags = [*flags.split(), "--input-length=32", "--learning-rate=0.02"]
  rows = ran("online", tmp_path, *domains, *flags, "--chart")["rows"]
  assert (tmp_path / "online.svg").exists()
  ways = [(r["learns"], r["domain"], r["first"], r["last"]) for r in rows]
  assert ways == [
    (way, domain, first, first + 3)
    for way in (CONTROL, "forward_kl", "reverse_kl")
    for domain in ("one", "two")
    for first in (0, 3)
  ]
  first = {way: r["alpha"] for r in reversed(rows) if (way := r["learns"])}
  # The draft learns nothing before the end of the first requests.
  assert first[CONTROL] == first["forward_kl"] == first["reverse_kl"]
  for row in rows:
    if row["learns"] != CONTROL:
      assert row["equal"] == "3 of 3"
  assert any(row["over_control"] for row in rows)
  # A second run measures nothing.
  monkeypatch.setattr(command, "_serve", pytest.fail)
  assert ran("online", tmp_path, *domains, *flags)["rows"] == rows
