"""Bad flags end a command with a message and without output.

A vocabulary may be a folder in Hugging Face's format. A draft without a name is called
draft.
"""

import json
import pathlib

import pytest

from benchmarks.__main__ import main
from tests.benchmarks.conftest import named

PAIR = ("batches", "rules", "tree", "methods", "figure5")
REFUSED = json.loads(pathlib.Path(__file__).with_name("refusals.json").read_text())


@pytest.mark.parametrize(("name", "flags", "message"), REFUSED["flags"])
def test_bad_flags_are_refused(
  name, flags, message, pair, files, tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "empty").write_text("")
  (tmp_path / "object").write_text("{}")
  (tmp_path / "rowless").write_text('{"rows": [], "environment": {}}')
  (tmp_path / "texts.jsonl").write_text('{"article": "a", "highlights": "a"}')
  pair_flags = pair if name in PAIR else []
  flags = flags.format(**files).split()
  output = tmp_path / "output"
  assert main([name, *pair_flags, *flags, f"--output={output}"]) == 1
  printed = capsys.readouterr()
  assert message in printed.err
  assert printed.err.count("error:") == 1
  assert printed.out == ""
  assert not output.exists()


@pytest.mark.parametrize(("name", "drafts", "message"), REFUSED["drafts"])
def test_unsuitable_drafts_are_refused(name, drafts, message, files, capsys):
  networks = {n: files[n] for n in ("target", "vocabulary", "inputs")}
  flags = [f"--draft {drafts}".format(**files)] if drafts else []
  assert main([name, *named(networks, output="none"), *" ".join(flags).split()]) == 1
  assert message in capsys.readouterr().err
