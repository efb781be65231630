"""All that pages show is measured by one command, which goes on where it stopped."""

import json
import sys
from types import SimpleNamespace

import pytest

from lab.__main__ import COMMANDS as LAB
from specdec_t5x.bench import report, results
from specdec_t5x.bench.__main__ import COMMANDS

PLAN = {
  "machine": "machine --megabytes 1 --runs 2 --rows 4",
  "pair": "tree",  # Of the demo pair, which an empty folder lacks.
  "theory": "table1",
}


def test_what_is_measured_are_commands_with_names_of_their_own():
  found = dict(results.commands(report.planned(), {"m30k": "DIR"}))
  assert next(iter(found)) == "machine"
  known = {(name,) for name in COMMANDS} | {("lab", name) for name in LAB}
  for command in found.values():
    assert tuple(command[: 1 + (command[0] == "lab")]) in known, command
  assert "DIR/target" in found["m30k_methods"]


def test_what_needs_a_folder_that_was_not_given_is_left():
  found = dict(results.commands(report.planned(), {}))
  assert found["m30k_methods"] is None
  assert found["demo_methods"] == ["lab", "methods"]


@pytest.mark.parametrize(
  ("command", "module"),
  [
    ("tree --gamma 3", "specdec_t5x.bench"),
    ("lab hierarchy --gamma 3", "lab"),
    ("lab methods", "lab"),
    ("infer --gin-file lab", "specdec_t5x.bench"),
  ],
)
def test_a_command_of_lab_is_run_and_kept_as_lab_s(
  command, module, tmp_path, monkeypatch
):
  started = []

  def run(words, **how):
    return started.append(words) or SimpleNamespace(returncode=0)

  monkeypatch.setattr(results.subprocess, "run", run)
  words = command.split()
  assert results._measured("one", words, tmp_path)
  given = words[1:] if module == "lab" else words
  (first,) = started
  assert first[:3] == [sys.executable, "-m", module]
  assert first[3 : 3 + len(given)] == given
  environment = dict.fromkeys(results._ENVIRONMENT, "x")
  (tmp_path / report.DATA).mkdir(parents=True)
  for name in ("machine", "one"):
    kept = {"environment": environment, "command": f"python {' '.join(first[1:])}"}
    (tmp_path / report.DATA / f"{name}.json").write_text(json.dumps(kept))
  assert results._is_kept(tmp_path, "one", words)
  assert not results._is_kept(tmp_path, "one", ["lab", "layers"])
  assert not results._is_kept(tmp_path, "one", [*words, "--more"])


@pytest.mark.slow
def test_what_fails_is_named_and_what_was_kept_is_not_measured_again(tmp_path, capsys):
  (tmp_path / "README.md").write_text("<!-- table theory -->\n<!-- end -->\n")
  assert results.main([], tmp_path, PLAN) == 1
  said = capsys.readouterr().out
  assert "Failed: pair. Run the command again to measure the failed tables." in said
  assert "theory: measuring" in said
  assert "the demo pair" in (tmp_path / "runs/results/pair.log").read_text()
  assert "| same digits |" in (tmp_path / "README.md").read_text()
  only = "--only", "theory"
  assert results.main(only, tmp_path, PLAN) == 0
  assert "theory: kept\n" in capsys.readouterr().out
  # Of other code, as of another machine, it is.
  path = tmp_path / report.DATA / "theory.json"
  kept = json.loads(path.read_text())
  assert results._is_kept(tmp_path, "theory", ["table1"])
  kept["environment"]["code"] = "another"
  path.write_text(json.dumps(kept))
  assert not results._is_kept(tmp_path, "theory", ["table1"])


def test_a_table_that_is_not_there_is_refused(tmp_path, capsys):
  assert results.main(["--only", "table9"], tmp_path, PLAN) == 1
  assert "expected names among ['machine', 'pair', 'theory']" in capsys.readouterr().out


def test_a_folder_needs_its_word(capsys):
  with pytest.raises(SystemExit, match="2"):
    results.main(["--data", "m30k"])
  assert "expected WORD=DIR, got 'm30k'" in capsys.readouterr().err
