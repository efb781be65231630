"""The benchmark's command line has every command; scripts call the paper's commands."""

import os
import pathlib
import runpy
import subprocess
import sys

import pytest

from benchmarks.__main__ import COMMANDS, main

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_text(name, capsys):
  with pytest.raises(SystemExit, match="0"):
    main([name, "--help"])
  output = capsys.readouterr().out
  assert f"usage: python -m benchmarks {name}" in output
  assert "--output" in output


def test_an_unknown_command_is_refused_with_the_known_ones(capsys):
  with pytest.raises(SystemExit, match="2"):
    main(["table6"])
  assert "invalid choice: 'table6'" in capsys.readouterr().err


@pytest.mark.parametrize(
  "path", [*SCRIPTS.glob("reproduce_*.py")], ids=lambda p: p.stem
)
def test_a_script_calls_its_command(path, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["script", "--help"])
  with pytest.raises(SystemExit, match="0"):
    runpy.run_path(str(path), run_name="__main__")
  name = path.stem.removeprefix("reproduce_")
  assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out


def test_a_script_finds_the_benchmarks_from_any_folder(tmp_path):
  environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  script = [sys.executable, SCRIPTS / "reproduce_table1.py"]
  subprocess.run([*script, "--output=out"], cwd=tmp_path, env=environment, check=True)
  assert (tmp_path / "out" / "table1.md").is_file()
