"""Fixed and adaptive draft lengths, measured on a tiny pair."""

import json

import pytest

from specdec_t5x.bench import timed
from specdec_t5x.bench.compare import GAMMA as COMMAND
from tests.t5x_bridge import tiny


@pytest.fixture
def files(tmp_path):
  text = tmp_path / "lines.txt"
  text.write_text("\n".join(tiny.sentences(3, seed=4)))
  return {
    "target": tiny.save_t5x(tmp_path / "t", tiny.TARGET, seed=1),
    "draft": tiny.save_t5x(tmp_path / "d", tiny.DRAFT, seed=2),
    "vocabulary": tiny.train_vocabulary(tmp_path),
    "inputs": str(text),
    "output": str(tmp_path / "out"),
  }


def run(files):
  flags = "--gammas 1 --confidences 0.5 --max-length 8"
  named = [f"--{name}={path}" for name, path in files.items()]
  return COMMAND.main([*flags.split(), *named])


@pytest.mark.usefixtures("processor_clock")
def test_every_setting_gives_the_same_outputs(files, tmp_path, capsys, monkeypatch):
  # Parts of so small a pair are short: more repetitions, or noise hides them.
  monkeypatch.setattr(timed, "_PART", (2, 400))
  assert run(files) == 0
  found = json.loads((tmp_path / "out" / "gamma.json").read_text())
  rows = {row["setting"]: row for row in found["rows"]}
  assert list(rows) == ["fixed 1", "confidence 0.5", "online"]
  assert {row["identical"] for row in rows.values()} == {"3/3"}
  assert found["best"] == "fixed 1"
  assert rows["fixed 1"]["in_all"] == 1
  # Blocks at gamma 1 have one or two tokens.
  assert len(found["costs"]["block_costs"]) == 2
  assert "3 inputs; best: fixed 1" in capsys.readouterr().out


def test_no_inputs_are_refused(files, tmp_path, capsys):
  (tmp_path / "lines.txt").write_text("")
  assert run(files) == 1
  assert "has no line. Give an input a line." in capsys.readouterr().err
