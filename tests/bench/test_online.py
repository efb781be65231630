"""Alpha over requests while a draft learns, on a tiny random pair."""

import json

import pytest

from specdec_t5x.bench import online
from specdec_t5x.bench.online import COMMAND, CONTROL
from tests.t5x_bridge import tiny

SHORT = ("--requests=6", "--window=3", "--interval=3", "--kept=4", "--gamma=2")
ROOM = ("--max-length=10", "--input-length=32", "--learning-rate=0.02")


@pytest.fixture(scope="module")
def named(files, tmp_path_factory):
  root = tmp_path_factory.mktemp("domains")
  for name, seed in (("one", 1), ("two", 2)):
    (root / name).write_text("\n".join(tiny.sentences(6, seed)))
  flags = [f"--domain={name}={root / name}" for name in ("one", "two")]
  draft = files["draft"].partition("=")[2]
  models = [f"--target={files['target']}", f"--draft={draft}"]
  return [*models, f"--vocabulary={files['vocabulary']}", *flags, *SHORT, *ROOM]


def run(named, folder, *more):
  assert COMMAND.main([*named, *more, f"--output={folder}"]) == 0
  return json.loads((folder / "online.json").read_text())["rows"]


def test_each_way_has_its_alpha_beside_the_control_s(named, tmp_path, monkeypatch):
  pytest.importorskip("matplotlib")
  rows = run(named, tmp_path, "--chart")
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
  assert run(named, tmp_path) == rows


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--domain=three", "expected NAME=FILE, of a file that is there"),
    ("--requests=7", "expected --requests=7 lines of at most --input-length=32"),
  ],
)
def test_domains_that_can_t_be_served(flag, message, named, tmp_path, capsys):
  assert COMMAND.main([*named, flag, f"--output={tmp_path}"]) == 1
  assert message in capsys.readouterr().err
