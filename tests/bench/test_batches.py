"""Plain, fixed and automatic drafts, measured by batch on a tiny pair."""

import json

from specdec_t5x.bench.compare import BATCHES as COMMAND
from tests.t5x_bridge import tiny


def test_every_setting_gives_the_plain_outputs(tmp_path, capsys):
  text = tmp_path / "lines.txt"
  text.write_text("\n".join(tiny.sentences(5, seed=4)))
  files = {
    "target": tiny.save_t5x(tmp_path / "t", tiny.TARGET, seed=1),
    "draft": tiny.save_t5x(tmp_path / "d", tiny.DRAFT, seed=2),
    "vocabulary": tiny.train_vocabulary(tmp_path),
    "inputs": str(text),
    "output": str(tmp_path / "out"),
  }
  flags = "--gamma 2 --gammas 2 --max-length 8 --batches 2 --queue 2"
  named = [f"--{name}={path}" for name, path in files.items()]
  assert COMMAND.main([*flags.split(), *named]) == 0
  rows = json.loads((tmp_path / "out" / "batches.json").read_text())["rows"]
  names = [f"{name}{more}" for name in NAMES for more in ("", ", SLOTS")]
  assert [row["setting"] for row in rows] == names
  # Two groups of two batches of two; the last input stands in for three more.
  assert {row["identical"] for row in rows} == {8}
  assert rows[0]["speed"]["median"] == 1
  assert rows[0]["drafted"] == 0 < rows[2]["drafted"] == rows[3]["drafted"]
  assert "5 inputs" in capsys.readouterr().out


NAMES = "plain", "gamma 2", "auto"
