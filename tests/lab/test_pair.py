"""The recipe of the pair in the package: gin files, texts, vocabulary and training."""

import hashlib
import pathlib

import gin
import jax
import numpy as np
import pytest
import sentencepiece
from t5x import gin_utils

import specdec_t5x
from benchmarks.measure import Setting
from benchmarks.study import Draft, Job, Study, load_draft, pad_inputs
from lab.pair import comparison, pack, recipe, texts
from lab.pair.grammar import splits, translation
from specdec_t5x.core import theory
from specdec_t5x.demo import embedded
from tests.benchmarks.conftest import STEADY
from tests.benchmarks.conftest import steady_parts as steady_parts
from tests.real_data import ROOT
from tests.t5x_bridge import tiny


@pytest.fixture(scope="module")
def rows():
  return translation.rows("train", 4_000)


# SHA-256 of the sentences that the pair in the package was trained with.
DIGESTS = {
  "train": "97bba5ac2848a495c5759111bea4ab55af4b7ce0162df096e51683eb13056e18",
  "validation": "32334c33e8e331a93bb05f81a67c6a854bc5435d9a39fe07b52486e4a0bb9af4",
}


@pytest.mark.parametrize("split", DIGESTS)
def test_the_sentences_are_the_pair_s(split, rows):
  found = rows if split == "train" else translation.rows(split, 500)
  text = "\n".join("\t".join(row) for row in found)
  assert hashlib.sha256(text.encode()).hexdigest() == DIGESTS[split]


def test_splits_are_disjoint_for_any_seed(rows):
  held_out = {en for seed in (0, 1) for en, _ in translation.rows("test", 100, seed)}
  validation = {en for en, _ in translation.rows("validation", 100)}
  assert not held_out & {en for en, _ in rows}
  assert not validation & (held_out | {en for en, _ in rows})
  assert len({en for en, _ in rows}) == len(rows)


def test_too_many_examples_are_an_error():
  split = splits.split_of("a")
  with pytest.raises(ValueError, match="Found only 1 distinct"):
    splits.generate(lambda rng: ("a", "b"), split, 2, seed=0)


GAMMA, MAX_OUTPUT, EOS = 5, 10, 1
UNTRAINED = ("copy", "quantized")


@pytest.fixture(scope="module")
def study():
  target, draft = tiny.pair()
  drafts = tuple(load_draft(name, name, "float32") for name in UNTRAINED) + tuple(
    Draft(name, name, model, "draft_model", name)
    for name, model in (("other", draft), ("itself", target))
  )
  inputs = pad_inputs([[5, 6, 7, EOS], [8, EOS], [9, 10, EOS], [11, 12, EOS]])
  job = Job("ende", "t", {}, None, MAX_OUTPUT, runs=3)
  return Study(job, target, drafts, inputs, EOS)


@pytest.mark.slow
@pytest.mark.usefixtures("steady_parts")
def test_greedy_outputs_equal_the_target_s_and_it_drafts_best(study):
  costs = comparison.costs_of(study)
  greedy = comparison.rows(study, Setting(GAMMA, 0.0), costs, len)
  *untrained, other, itself = greedy
  assert tuple(row["draft"] for row in untrained) == UNTRAINED
  assert (other["draft"], itself["draft"]) == ("other", "itself")
  assert {row["identical"] for row in greedy} == {"4/4"}
  assert itself["alpha"].value == 1.0 > other["alpha"].value
  assert itself["tokens_per_call"].value > other["tokens_per_call"].value >= 1.0
  assert other["speed"].low <= other["speed"].median <= other["speed"].high
  assert {other[f"{prefix}score"] for prefix in ("", "plain_", "draft_")} == {4}
  assert "draft_score" not in untrained[0]
  # Theorem 3.8 uses c from the measured parts.
  c = (STEADY[1][0] - STEADY[0][0]) / GAMMA / STEADY["plain"][0]
  for row in greedy:
    assert row["c"] == pytest.approx(c)
    theorem = theory.walltime_improvement(row["alpha"].value, GAMMA, c)
    assert row["theorem"] == pytest.approx(float(theorem))


def test_scores_ignore_padding(tmp_path):
  vocabulary = tiny.train_vocabulary(tmp_path)
  encode = sentencepiece.SentencePieceProcessor(model_file=vocabulary).encode
  texts = tiny.sentences(2, seed=6)
  score = comparison.bleu(vocabulary, texts)
  # The ID 100_000 is beyond the vocabulary, like the padding rows of the network.
  outputs = [np.array([*encode(text), EOS, 100_000, 0, 0]) for text in texts]
  assert score(outputs) == pytest.approx(100)
  assert score(outputs[::-1]) < 100


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
