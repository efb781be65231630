"""The benchmark's command line: help, scripts of the paper's commands, and refusals.

Bad flags end a command with a message and without output. A vocabulary may be a folder
in Hugging Face's format. A draft without a name is called draft.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

from benchmarks.__main__ import COMMANDS, main
from benchmarks.environment import ROOT
from tests.benchmarks.conftest import named

SCRIPTS = ROOT / "scripts"
REFUSED = json.loads(pathlib.Path(__file__).with_name("refusals.json").read_text())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_script_has_a_help_text(name, capsys, monkeypatch):
  script = SCRIPTS / f"reproduce_{name}.py"
  assert script.exists() == name.startswith(("table", "figure"))
  path = script if script.exists() else ROOT / "benchmarks/__main__.py"
  flags = ["--help"] if script.exists() else [name, "--help"]
  monkeypatch.setattr("sys.argv", [str(path), *flags])
  with pytest.raises(SystemExit, match="0"):
    runpy.run_path(str(path), run_name="__main__")
  output = capsys.readouterr().out
  assert f"usage: python -m benchmarks {name}" in output
  assert "--output" in output


def test_a_script_finds_the_benchmarks_from_any_folder(tmp_path):
  environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
  script = [sys.executable, SCRIPTS / "reproduce_table1.py"]
  subprocess.run([*script, "--output=out"], cwd=tmp_path, env=environment, check=True)
  assert (tmp_path / "out" / "table1.md").is_file()


@pytest.mark.parametrize(("name", "flags", "message"), REFUSED)
def test_bad_flags_are_refused(
  name, flags, message, files, tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  texts = {"empty": "", "object": "{}", "rowless": '{"rows": [], "environment": {}}'}
  for file, text in texts.items():
    pathlib.Path(file).write_text(text)
  networks = " ".join(named({n: files[n] for n in ("target", "vocabulary", "inputs")}))
  pair = " ".join(named(files))
  flags = flags.format(**files, networks=networks, pair=pair).split()
  assert main([name, *flags, "--output=output"]) == 1
  printed = capsys.readouterr()
  assert message in printed.err
  assert printed.err.count("error:") == 1
  assert printed.out == ""
  assert not pathlib.Path("output").exists()
