"""One command line: every command is there, and every script calls its own."""

import pathlib
import re
import runpy

import pytest

from specdec_t5x.bench.__main__ import COMMANDS, main

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name, capsys):
  with pytest.raises(SystemExit, match="0"):
    main([name, "--help"])
  said = capsys.readouterr().out
  assert f"usage: python -m specdec_t5x.bench {name}" in said
  assert "--output" in said


def test_an_unknown_command_is_refused_with_the_known_ones(capsys):
  with pytest.raises(SystemExit, match="2"):
    main(["table6"])
  assert "invalid choice: 'table6'" in capsys.readouterr().err


def test_every_command_has_a_script():
  kinds = ("bench", "choose", "plan", "reproduce")
  paths = [path for kind in kinds for path in SCRIPTS.glob(f"{kind}_*.py")]
  called = [re.search(r'main\(\["(.+?)"', path.read_text()).group(1) for path in paths]
  shell = [path.read_text() for path in SCRIPTS.glob("bench_*.sh")]
  called += [re.search(r"specdec_t5x.bench (\w+)", text).group(1) for text in shell]
  assert sorted(called) == sorted(COMMANDS)


def test_a_script_runs_its_command(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["script", f"--output={tmp_path}"])
  with pytest.raises(SystemExit, match="0"):
    runpy.run_path(str(SCRIPTS / "reproduce_table1.py"), run_name="__main__")
  assert (tmp_path / "table1.md").read_text() == capsys.readouterr().out
