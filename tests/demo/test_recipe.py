"""The recipe, the gin files and the Makefile agree."""

import pathlib

import gin
import pytest
from t5x import gin_utils

from specdec_t5x.data import hints
from specdec_t5x.demo import recipe

ROOT = pathlib.Path(__file__).parents[2]
PAIRS = list(recipe.PAIRS.values())
OPTIONAL_PARTS = {pair.name: (*pair.more, *pair.tables) for pair in PAIRS}
PARTS = [(p, part) for p in PAIRS for part in (*p.parts, *OPTIONAL_PARTS[p.name])]


@pytest.fixture(autouse=True)
def from_the_root(monkeypatch):
  monkeypatch.chdir(ROOT)


def macro(name):
  """Returns a macro's value; a function that the macro names is called."""
  value = gin.query_parameter(f"{name}/macro.value")
  is_function = isinstance(value, gin.config.ConfigurableReference) and value.evaluate
  return value.scoped_configurable_fn() if is_function else value


@pytest.mark.parametrize(("pair", "part"), PARTS, ids=lambda x: x.name)
def test_gin_files_write_the_checkpoints_of_the_recipe(pair, part):
  gin_utils.parse_gin_flags(["."], [part.gin_file], part.bindings)
  folder = macro("OUTPUT_DIR") + (f"/{macro('HEADS')}" if part.job == "heads" else "")
  steps = 0 if part.job == "ngrams" else macro("STEPS")
  assert f"{folder}/checkpoint_{steps}" == part.checkpoint
  assert macro("VOCABULARY_PATH") == pair.vocabulary
  if part.job != "ngrams":
    assert (macro("TARGET_CHECKPOINT_PATH") is None) == (part is pair.target)
  else:
    vocab_size = macro("VOCAB_SIZE")
    gin.clear_config()
    gin.parse_config_file(f"configs/pairs/demo_{pair.name}.gin")
    assert gin.query_parameter("config.T5Config.vocab_size") == vocab_size


@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: p.name)
def test_the_bare_jobs_decode_the_demo_pair(pair):
  gin.parse_config_file(f"configs/pairs/demo_{pair.name}.gin")
  assert macro("TARGET_CHECKPOINT_PATH") == pair.target.path
  assert macro("DRAFT_CHECKPOINT_PATH") == pair.drafts[0].path
  assert macro("VOCABULARY_PATH") == pair.vocabulary
  lengths = {"inputs": pair.max_input, "targets": pair.max_output}
  assert macro("TASK_FEATURE_LENGTHS") == lengths
  for kind in ("spec", "baseline"):
    job = (ROOT / f"configs/{kind}_{pair.name}.gin").read_text()
    assert f"include 'configs/pairs/demo_{pair.name}.gin'" in job


def test_missing_files_are_named_with_the_command_that_makes_them(tmp_path):
  assert recipe.ENDE.missing(tmp_path) == []
  assert "`make demo-train`" in hints.how_to_make(recipe.ENDE.target.checkpoint)
  pair = recipe.LM
  assert pair.missing(tmp_path) == [pair.vocabulary, *(p.path for p in pair.parts)]
  (tmp_path / pair.target.path).mkdir(parents=True)
  assert pair.target.path not in pair.missing(tmp_path)
  for name, parts in OPTIONAL_PARTS.items():
    command = f"`python -m specdec_t5x.demo --pairs {name} --more`"
    assert all(command in hints.how_to_make(part.checkpoint) for part in parts)
  assert "`make demo-all`" in hints.how_to_make("./" + recipe.CNNDM.vocabulary)
  assert hints.how_to_make("runs/demonstration/x") == ""
  targets = (ROOT / "Makefile").read_text()
  for command in hints.COMMANDS.values():
    assert f"\n{command.removeprefix('make ')}: install\n" in targets
