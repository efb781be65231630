"""One command line: every command is there; scripts call those of the paper."""

import pathlib
import runpy

import pytest

from specdec_t5x.bench.__main__ import COMMANDS, MOVED, main

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


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("flags", [[], ["--help"], ["--output=out", "--gamma=0"]])
def test_a_command_that_moved_is_refused_with_its_new_name(name, flags, capsys):
  assert main([name, *flags]) == 1
  said = capsys.readouterr()
  assert said.err.startswith(f"error: `bench {name}` is now `python -m lab {name}`, ")
  assert said.err.count("\n") == 1
  assert said.out == ""
  assert name not in COMMANDS


@pytest.mark.parametrize(
  "path", [*SCRIPTS.glob("reproduce_*.py")], ids=lambda p: p.stem
)
def test_a_script_calls_its_command(path, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["script", "--help"])
  with pytest.raises(SystemExit, match="0"):
    runpy.run_path(str(path), run_name="__main__")
  name = path.stem.removeprefix("reproduce_")
  assert f"usage: python -m specdec_t5x.bench {name}" in capsys.readouterr().out
