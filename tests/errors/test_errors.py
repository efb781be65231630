"""Bad input ends a command with exit code 1 and one line, and changes no file."""

import re

import gin
import pytest
import t5x
from absl import flags

from specdec_t5x import train
from specdec_t5x.t5x_bridge import preflight
from tests import commands
from tests.e2e import runs
from tests.errors import inputs
from tests.errors.cases import CASES, filler

pytestmark = pytest.mark.skipif(
  not hasattr(t5x, "PROVIDER"), reason="upstream T5X reports errors in its own way"
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  return inputs.make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def here(pair, tmp_path):
  """Returns a folder with the pair's gin file and an output folder with results."""
  (tmp_path / "out").mkdir()
  (tmp_path / "out" / "config.gin").write_text("# of an earlier run\n")
  pair.gin_file(tmp_path, name=f"errors_{tmp_path.name}")
  return tmp_path


def test_with_upstream_t5x_preflight_refuses_an_unused_macro(monkeypatch):
  monkeypatch.delattr(t5x, "PROVIDER", raising=False)
  with commands.own_flags(train.define_flags):
    flags.FLAGS(["infer", "--gin_bindings=GAMMA = 3", "--gin_bindings=GAMA = 5"])
    gin.parse_config(["READS = %GAMMA", *flags.FLAGS.gin_bindings])
    with pytest.raises(ValueError, match=r"--gin.GAMA sets a macro .* are: GAMMA"):
      preflight.check_macros()
    flags.FLAGS.gin_bindings = ["GAMMA = 3"]
    preflight.check_macros()


def in_process(run, arguments, capfd):
  """Returns the exit code and the text on a shell's stderr."""
  with pytest.raises(SystemExit) as exit_:
    run(*arguments)
  code = exit_.value.code
  return (1, code) if isinstance(code, str) else (code, capfd.readouterr().err)


def test_the_page_on_errors_is_made_from_these_cases():
  """`python docs/errors_page.py` makes the page."""
  made = commands.script_module("errors_page", "docs").to_markdown()
  assert (runs.ROOT / "docs" / "errors.md").read_text(encoding="utf-8") == made
  assert len({case.did for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.did)
def test_bad_input_ends_with_one_line_and_changes_nothing(
  case, pair, here, unchecked, monkeypatch, capfd
):
  monkeypatch.chdir(runs.ROOT)
  arguments = case.arguments(pair, here)
  expected = filler(pair, here)(case.says)
  before = commands.contents(here, pair.root)
  if case.alone:
    process = runs.infer(flags=arguments)
    code, message = process.returncode, process.stderr
  else:
    code, message = in_process(case.run, arguments, capfd)
  assert commands.contents(here, pair.root) == before
  assert code == case.code
  assert expected in message
  lines = [line for line in message.splitlines() if line.strip()]
  # Progress lines and TensorFlow's startup messages are not errors.
  log_line = re.compile(r"\[ *\d+\.\d s\] |[IWE]\d{4} ")
  errors = [line for line in lines if not log_line.match(line)]
  assert len(errors) == 1
