"""The command line of lab: commands and refused flags."""

import pytest

from lab.__main__ import COMMANDS, main
from tests.benchmarks.conftest import named


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
  with pytest.raises(SystemExit, match="0"):
    main([name, "--help"])
  printed = capsys.readouterr().out
  assert f"usage: python -m lab {name}" in printed
  assert ("--output" in printed) == (name not in ("pair", "differences"))


@pytest.mark.parametrize(
  ("name", "flags", "message"),
  [
    ("layers", "--trials=-1", "--trials must be at least 0"),
    ("layers", "--gamma=0", "--gamma must be at least 1"),
    ("model", "--topology v9:1x1", "Expected a topology such as v4:1x1x1"),
    ("model", "--widths 2 4", "Expected width 1"),
    ("hierarchy", "", "expected NAME=DIR, `copy` or `quantized`, got no draft"),
    ("tree", "--draft {draft}", "expected heads, but not EAGLE's, got 'draft_model'"),
    ("link", "--draft copy", "a link needs a draft model or a table of n-grams"),
    ("online", "--requests=6 --domain=three", "expected NAME=FILE, of a file that"),
    (
      "online",
      "--requests=7 --input-length=32",
      "expected --requests=7 lines of at most --input-length=32",
    ),
    (
      "copy",
      "--texts=texts.jsonl --vocabulary={vocabulary} --size=tiny --source=story",
      "story",
    ),
    ("methods", "--draft copy --also others.txt", "--also: expected NAME=FILE"),
  ],
)
def test_bad_flags_are_refused(
  name, flags, message, files, domains, tmp_path, capsys, monkeypatch
):
  pair = named({n: files[n] for n in ("target", "vocabulary", "inputs")})
  inputs = {"model": [], "copy": [], "online": domains}.get(name, pair)
  monkeypatch.chdir(tmp_path)
  (tmp_path / "texts.jsonl").write_text('{"article": "a", "highlights": "a"}')
  flags = flags.format(**files)
  output = tmp_path / "output"
  assert main([name, *inputs, *flags.split(), f"--output={output}"]) == 1
  printed = capsys.readouterr()
  assert message in printed.err
  assert printed.err.count("error:") == 1
  assert printed.out == ""
  assert not output.exists()
