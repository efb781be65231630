"""`make results` measures every table of the pages and continues a stopped run."""

import json
import os

import pytest

from benchmarks import report, results
from benchmarks.__main__ import COMMANDS
from lab.__main__ import COMMANDS as LAB
from tests.real_data import ROOT

PLAN = {
  "machine": "machine --megabytes 1 --runs 2 --rows 4",
  "pair": "tree",  # Needs heads, which the pair in the package lacks.
  "theory": "table1",
}


def test_every_planned_measurement_is_a_known_command():
  commands = dict(results.commands(report.planned(), {"m30k": "DIR"}))
  assert next(iter(commands)) == "machine"
  known_commands = {(name,) for name in COMMANDS} | {("lab", name) for name in LAB}
  for command in commands.values():
    assert tuple(command[: 1 + (command[0] == "lab")]) in known_commands, command
  assert "DIR/target" in commands["m30k_methods"]


def test_commands_without_their_folder_are_skipped():
  commands = dict(results.commands(report.planned(), {}))
  assert commands["m30k_methods"] is None
  assert commands["demo_methods"] == ["lab", "methods"]


@pytest.mark.slow
def test_failures_are_named_and_kept_tables_are_not_measured_again(
  tmp_path, capsys, monkeypatch
):
  # `python -m benchmarks` runs in the empty folder instead of a clone.
  monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
  (tmp_path / "README.md").write_text("<!-- table theory -->\n<!-- end -->\n")
  assert results.main([], tmp_path, PLAN) == 1
  printed = capsys.readouterr().out
  assert "Failed: pair. Run the command again to measure the failed tables." in printed
  assert "theory: measuring" in printed
  assert "expected heads" in (tmp_path / "runs/results/pair.log").read_text()
  assert "| same digits |" in (tmp_path / "README.md").read_text()
  only = "--only", "theory"
  assert results.main(only, tmp_path, PLAN) == 0
  assert "theory: kept\n" in capsys.readouterr().out
  # Tables from different code or a different machine are measured again.
  path = tmp_path / report.DATA / "theory.json"
  record = json.loads(path.read_text())
  assert results._is_kept(tmp_path, "theory", ["table1"])
  record["environment"]["code"] = "another"
  path.write_text(json.dumps(record))
  assert not results._is_kept(tmp_path, "theory", ["table1"])


def test_an_unknown_table_is_refused(tmp_path, capsys):
  assert results.main(["--only", "table9"], tmp_path, PLAN) == 1
  assert "expected names among ['machine', 'pair', 'theory']" in capsys.readouterr().out


def test_a_folder_without_a_name_is_refused(capsys):
  with pytest.raises(SystemExit, match="2"):
    results.main(["--data", "m30k"])
  assert "expected WORD=DIR, got 'm30k'" in capsys.readouterr().err
