"""What a command can't do it says, and writes nothing.

Without a pair of one's own it is the demo's, which is not there; a folder will do as a
vocabulary, as Hugging Face has them; a draft without a name is called draft.
"""

import json
import pathlib

import pytest

from specdec_t5x.bench.__main__ import main
from tests.bench.conftest import named

PAIR = ("batches", "rules", "tree", "methods", "figure5")
REFUSED = json.loads(pathlib.Path(__file__).with_name("refusals.json").read_text())


@pytest.mark.parametrize(("name", "flags", "message"), REFUSED["flags"])
def test_bad_flags_are_refused(
  name, flags, message, pair, files, tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)  # No demo pairs here.
  (tmp_path / "empty").write_text("")
  (tmp_path / "object").write_text("{}")
  (tmp_path / "rowless").write_text('{"rows": [], "environment": {}}')
  (tmp_path / "texts.jsonl").write_text('{"article": "a", "highlights": "a"}')
  given = pair if name in PAIR else []
  flags = flags.format(**files).split()
  output = tmp_path / "output"
  assert main([name, *given, *flags, f"--output={output}"]) == 1
  said = capsys.readouterr()
  assert message in said.err
  assert said.err.count("error:") == 1
  assert said.out == ""
  assert not output.exists()


@pytest.mark.parametrize(("name", "drafts", "message"), REFUSED["drafts"])
def test_drafts_that_do_not_do_are_refused(name, drafts, message, files, capsys):
  rest = {n: files[n] for n in ("target", "vocabulary", "inputs")}
  flags = [f"--draft {drafts}".format(**files)] if drafts else []
  assert main([name, *named(rest, output="none"), *" ".join(flags).split()]) == 1
  assert message in capsys.readouterr().err
