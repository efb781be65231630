"""The recipe of the pair in the package: gin files, texts, vocabulary and training."""

import pathlib

import gin
import jax
import pytest
from t5x import gin_utils

import specdec_t5x
from lab.pair import pack, recipe, texts
from specdec_t5x.demo import embedded
from tests.real_data import ROOT

TWO_STEPS = """
include 'lab/pair/target.gin'
from specdec_t5x.network import config
OUTPUT_DIR = 'target'
STEPS = 2
WARMUP_STEPS = 1
VALIDATION_PERIOD = 0
target/config.T5Config:
  emb_dim = 16
  num_heads = 1
  num_encoder_layers = 1
  num_decoder_layers = 1
  mlp_dim = 16
"""


def macro(name):
  """Returns a macro's value; a function that the macro names is called."""
  value = gin.query_parameter(f"{name}/macro.value")
  is_function = isinstance(value, gin.config.ConfigurableReference) and value.evaluate
  return value.scoped_configurable_fn() if is_function else value


@pytest.mark.parametrize(
  "part", [recipe.TARGET, recipe.DRAFT, *recipe.MORE], ids=lambda part: part.name
)
def test_gin_files_write_the_checkpoints_of_the_recipe(part, monkeypatch):
  monkeypatch.chdir(ROOT)
  gin_utils.parse_gin_flags(["."], [part.gin_file], part.bindings)
  folder = macro("OUTPUT_DIR") + (f"/{macro('HEADS')}" if part.job == "heads" else "")
  steps = 0 if part.job == "ngrams" else macro("STEPS")
  assert f"{folder}/checkpoint_{steps}" == part.checkpoint
  assert macro("VOCABULARY_PATH") == texts.VOCABULARY
  if part.job != "ngrams":
    targets = {recipe.TARGET: None, recipe.DRAFT: recipe.TARGET.checkpoint}
    expected = targets.get(part, embedded.target())
    assert macro("TARGET_CHECKPOINT_PATH") == expected


def test_the_texts_and_the_vocabulary_are_the_package_s(tmp_path):
  texts.write(str(tmp_path), "test", texts.SIZES["test"])
  for path in map(pathlib.Path, embedded.files()["test"]):
    assert path.read_bytes() == (tmp_path / path.name).read_bytes()
  vocabulary = pathlib.Path(embedded.vocabulary())
  assert texts.trained_vocabulary() == vocabulary.read_bytes()


def test_a_part_is_trained_into_the_recipe_s_folder(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  for folder in ("configs", "lab"):
    (tmp_path / folder).symlink_to(ROOT / folder)
  (tmp_path / "two_steps.gin").write_text(TWO_STEPS)
  for split in ("train", "validation"):
    texts.write(texts.FOLDER, split, 50)
  vocabulary = pathlib.Path(embedded.vocabulary()).read_bytes()
  pathlib.Path(texts.VOCABULARY).write_bytes(vocabulary)
  part = recipe.Part("two", "two steps", "../../../target", 3, "two_steps.gin")
  with pytest.raises(ValueError, match="checkpoint_3 does not exist"):
    recipe.make(part)
  assert pathlib.Path("target/checkpoint_2").is_dir()
  assert "two (two steps)" in capsys.readouterr().out


def test_the_recipe_is_refused_outside_of_a_clone(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit):
    recipe.main([])
  assert "in the repository's root (lab/pair/target.gin)" in capsys.readouterr().err


def test_the_card_matches_the_files_and_the_recipe():
  card = embedded.card()
  assert card["examples"] == texts.SIZES
  for name, part in (("target", recipe.TARGET), ("draft", recipe.DRAFT)):
    assert card[name]["sha256"] == pack.digest(embedded.FOLDER / name)
    assert card[name]["gin_file"] == part.gin_file
    assert card[name]["steps"] == part.steps == embedded.STEPS
    params = specdec_t5x.load_model(embedded.checkpoint(name)).params
    assert card[name]["parameters"] == sum(x.size for x in jax.tree.leaves(params))


def test_a_changed_file_changes_the_digest(tmp_path):
  (tmp_path / "a").write_text("1")
  before = pack.digest(tmp_path)
  (tmp_path / "a").write_text("2")
  assert pack.digest(tmp_path) != before
