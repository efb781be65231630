"""The embedded pair: files, card and quality."""

import json
import pathlib

import gin
import jax
import pytest

import specdec_t5x
from specdec_t5x.analysis import theory
from specdec_t5x.demo import embed, embedded, held_out, recipe, tasks
from specdec_t5x.demo.corpora import translation

ROOT = pathlib.Path(__file__).parents[2]
TEXTS = 60


@pytest.fixture(scope="module")
def models():
  paths = {"target": embedded.target(), "draft": embedded.draft()}
  return {name: specdec_t5x.load_model(path) for name, path in paths.items()}


def test_the_card_has_the_digests_of_the_files():
  card = embedded.card()
  for name in ("target", "draft"):
    assert card[name]["sha256"] == embed.digest(embedded.FOLDER / name)
  size = sum(p.stat().st_size for p in embedded.FOLDER.rglob("*") if p.is_file())
  assert size <= 25e6


def test_a_changed_file_changes_the_digest(tmp_path):
  (tmp_path / "a").write_text("1")
  before = embed.digest(tmp_path)
  (tmp_path / "a").write_text("2")
  assert embed.digest(tmp_path) != before


def test_the_card_matches_the_recipe(models, monkeypatch):
  monkeypatch.chdir(ROOT)
  card = embedded.card()
  assert card["examples"] == tasks.ENDE_SIZES
  for name, part in (("target", recipe.ENDE.target), ("draft", recipe.ENDE.drafts[0])):
    leaves = jax.tree.leaves(models[name].params)
    assert card[name]["parameters"] == sum(leaf.size for leaf in leaves)
    assert card[name]["gin_file"] == part.gin_file
    gin.clear_config()
    gin.parse_config_file(part.gin_file)
    assert card[name]["steps"] == gin.query_parameter("STEPS/macro.value")


def test_the_test_set_equals_the_task_s():
  assert embedded.translations() == list(
    translation.rows("test", tasks.ENDE_SIZES["test"])
  )


def test_the_expected_rate_gives_the_card_s_tokens_per_call():
  card = embedded.card()
  rate = embedded.alpha(embedded.target(), embedded.draft())
  tokens = theory.expected_tokens(rate, card["gamma"])
  assert tokens == pytest.approx(card["tokens_per_target_call"], abs=0.01)
  assert embedded.alpha(embedded.target(), None) is None
  assert embedded.alpha(embedded.target(), embedded.draft(), "copy") is None


def test_bleu_and_alpha_match_the_card(models):
  """The tolerances are the spread of scores over so few texts."""
  texts = held_out.held_out_texts("ende", TEXTS)
  outputs = specdec_t5x.generate(
    [text for text, _ in texts],
    models["target"],
    models["draft"],
    embedded.vocabulary(),
    gamma=5,
    max_length=80,
  )
  references = [reference for _, reference in texts]
  bleu = held_out.METRICS["ende"](references, [output.text for output in outputs])
  card = embedded.card()
  assert bleu == pytest.approx(card["target"]["bleu"], abs=5)
  alpha = sum(x.accepted for x in outputs) / sum(x.tried for x in outputs)
  assert alpha == pytest.approx(card["alpha"]["T=0"]["value"], abs=0.05)


def test_an_incomplete_package_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(embedded, "FOLDER", tmp_path)
  with pytest.raises(ValueError, match="checkpoint_8000"):
    specdec_t5x.load_model(embedded.target())
  (tmp_path / "card.json").write_text(json.dumps({"gamma": 5}))
  assert embedded.card() == {"gamma": 5}
