"""What a command can't do it says, and writes nothing."""

import pytest

from specdec_t5x.bench.__main__ import main
from tests.bench.conftest import named

PAIR = ("batches", "rules", "tree", "hierarchy", "methods", "figure5")
REFUSED = [
  ("batches", "--policies=auto=2", "a number of 'confidence' alone, got 'auto=2'"),
  ("decode", "--output-length 47", "--output-length must be at least 48, got 47"),
  ("decode", "--batch 0", "--batch must be at least 1, got 0"),
  ("decode", "--alphas 1.5", "Expected alphas from 0 to 1"),
  ("batches", "--inputs={empty}", "has no line. Give an input a line."),
  ("batches", "--inputs=nowhere", "--inputs: expected a file, got 'nowhere'"),
  ("layers", "--trials=-1", "--trials must be at least 0"),
  ("methods", "--also others.txt", "--also: expected NAME=FILE, got 'others.txt'"),
  ("model", "--topology v9:1x1", "Expected a topology such as v4:1x1x1"),
  ("model", "--topology v4", "Expected a topology such as v4:1x1x1"),
  ("model", "--widths 2 4", "Expected width 1"),
  ("online", "--requests=6 --domain=three", "expected NAME=FILE, of a file that"),
  (
    "online",
    "--requests=7 --input-length=32",
    "expected --requests=7 lines of at most --input-length=32",
  ),
  (
    "rules",
    "--gamma=2 --stem=2",
    "shorter than gamma, got --branches 2, --stem 2 and --gamma 2",
  ),
  ("rules", "--branches=1", "at least two branches"),
  # Without a pair of one's own it is the demo's, which is not there.
  ("table2", "", "--preset demo: the demo pair ende, cnndm, lm is not there"),
  ("table2", "--preset=demo", "Run `make demo` or `make demo-all`"),
  ("table2", "--preset=paper", "needs checkpoints for ende and cnndm: --target"),
  ("table2", "--preset=paper --tasks ende", "needs checkpoints for ende: --target"),
  ("table2", "--tasks french", "expected some of ('ende', 'cnndm', 'lm'), got"),
  ("table2", "--target=nowhere", "--vocabulary: expected a file, got None"),
  # A folder will do, as Hugging Face has them.
  ("table2", "--target=nowhere --vocabulary=.", "--inputs: expected a file, got None"),
  ("tree", "", "expected heads, but for EAGLE's, got a Transformer"),
]


@pytest.mark.parametrize(("name", "flags", "message"), REFUSED)
def test_bad_flags_are_refused(
  name, flags, message, pair, files, domains, tmp_path, capsys, monkeypatch
):
  monkeypatch.chdir(tmp_path)  # No demo pairs here.
  (tmp_path / "empty").write_text("")
  own = {"layers": named({n: files[n] for n in ("target", "vocabulary", "inputs")})}
  given = own | {"online": domains} | dict.fromkeys(PAIR, pair)
  flags = flags.format(empty=tmp_path / "empty").split()
  output = tmp_path / "output"
  assert main([name, *given.get(name, []), *flags, f"--output={output}"]) == 1
  said = capsys.readouterr()
  assert message in said.err
  assert said.err.count("error:") == 1
  assert said.out == ""
  assert not output.exists()


@pytest.mark.parametrize(
  ("name", "drafts", "message"),
  [
    ("rules", "quantized", "trees need a network or a table, got `quantized`"),
    ("hierarchy", "", "--draft: expected NAME=DIR, `copy` or `quantized`, got none"),
    ("link", "copy", "a link needs a draft model or a table of n-grams"),
    ("table2", "{draft} {draft}", "'small' is given twice"),
    # One without a name is called draft.
    ("table2", "{target} {target}", "'draft' is given twice"),
    ("table2", "ende:a={target} --preset=paper", "needs checkpoints for cnndm"),
  ],
)
def test_drafts_that_do_not_do_are_refused(name, drafts, message, files, capsys):
  rest = {n: files[n] for n in ("target", "vocabulary", "inputs")}
  flags = [f"--draft {drafts}".format(**files)] if drafts else []
  assert main([name, *named(rest, output="none"), *" ".join(flags).split()]) == 1
  assert message in capsys.readouterr().err
