"""The command line of lab: its commands, and what they refuse."""

import re

import pytest

from lab.__main__ import COMMANDS, main
from specdec_t5x.bench.__main__ import COMMANDS as BENCH
from specdec_t5x.bench.__main__ import MOVED, OTHERS
from tests.bench.conftest import named
from tests.real_data import ROOT

KNOWN = {"specdec_t5x.bench": {*BENCH, *OTHERS}, "lab": {*COMMANDS}}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_it_does(name, capsys):
  with pytest.raises(SystemExit, match="0"):
    main([name, "--help"])
  said = capsys.readouterr().out
  assert f"usage: python -m lab {name}" in said
  assert "--output" in said


def test_a_command_that_moved_is_here():
  assert {*MOVED} <= COMMANDS.keys()


@pytest.mark.parametrize(
  "pattern", ["docs/**/*.md", "configs/**/*.gin", "specdec_t5x/**/*.py", "lab/**/*.py"]
)
def test_commands_that_texts_name_are_there(pattern):
  for path in ROOT.glob(pattern):
    if path.name == "gin.md":  # `make docs` writes it, perhaps before the last change.
      continue
    # Below a table stands the command that made it, under its name of that time.
    lines = [x for x in path.read_text().splitlines() if ", code " not in x]
    found = re.findall(r"python -m (lab|specdec_t5x\.bench) (\w+)", "\n".join(lines))
    for module, name in found:
      assert name in KNOWN[module] or name.isupper(), path


@pytest.mark.parametrize("name", ["table2", "decode", "stress"])
def test_an_unknown_command_is_refused_with_the_known_ones(name, capsys):
  with pytest.raises(SystemExit, match="2"):
    main([name])
  said = capsys.readouterr().err
  assert f"invalid choice: '{name}'" in said
  assert "hierarchy" in said


@pytest.mark.parametrize(
  ("name", "flags", "message"),
  [
    ("layers", "--trials=-1", "--trials must be at least 0"),
    ("layers", "--gamma=0", "--gamma must be at least 1"),
    ("model", "--topology v9:1x1", "Expected a topology such as v4:1x1x1"),
    ("model", "--topology v4", "Expected a topology such as v4:1x1x1"),
    ("model", "--widths 2 4", "Expected width 1"),
    ("hierarchy", "", "--draft: expected NAME=DIR, `copy` or `quantized`, got none"),
    ("link", "--draft copy", "a link needs a draft model or a table of n-grams"),
    ("online", "--requests=6 --domain=three", "expected NAME=FILE, of a file that"),
    (
      "online",
      "--requests=7 --input-length=32",
      "expected --requests=7 lines of at most --input-length=32",
    ),
    ("methods", "--draft copy --also others.txt", "--also: expected NAME=FILE"),
  ],
)
def test_bad_flags_are_refused(name, flags, message, files, domains, tmp_path, capsys):
  pair = named({n: files[n] for n in ("target", "vocabulary", "inputs")})
  given = {"model": [], "online": domains}.get(name, pair)
  output = tmp_path / "output"
  assert main([name, *given, *flags.split(), f"--output={output}"]) == 1
  said = capsys.readouterr()
  assert message in said.err
  assert said.err.count("error:") == 1
  assert said.out == ""
  assert not output.exists()
