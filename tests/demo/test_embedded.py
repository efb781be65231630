"""The embedded pair: files, card and quality; `python -m specdec_t5x.demo`."""

import re

import gin
import pytest

import specdec_t5x
from specdec_t5x.core import theory
from specdec_t5x.data import metrics
from specdec_t5x.demo import __main__ as demo
from specdec_t5x.demo import embedded
from tests.real_data import ROOT

TEXTS = 60


def test_the_expected_rate_gives_the_card_s_tokens_per_call():
  card = embedded.card()
  rate = embedded.alpha(embedded.target(), embedded.draft())
  tokens = theory.expected_tokens(rate, card["gamma"])
  assert tokens == pytest.approx(card["tokens_per_target_call"], abs=0.01)
  assert embedded.alpha(embedded.target(), None) is None
  assert embedded.alpha(embedded.target(), embedded.draft(), "copy") is None


def test_bleu_and_alpha_match_the_card():
  """The tolerances are the spread of scores over so few texts."""
  texts, references = embedded.examples(TEXTS)
  outputs = specdec_t5x.generate(
    texts,
    specdec_t5x.load_model(embedded.target()),
    specdec_t5x.load_model(embedded.draft()),
    embedded.vocabulary(),
    gamma=5,
    max_length=80,
  )
  bleu = metrics.bleu(references, [output.text for output in outputs])["bleu"]
  card = embedded.card()
  assert bleu == pytest.approx(card["target"]["bleu"], abs=5)
  alpha = sum(x.accepted for x in outputs) / sum(x.tried for x in outputs)
  assert alpha == pytest.approx(card["alpha"]["T=0"]["value"], abs=0.05)


def test_an_incomplete_package_is_refused(tmp_path, monkeypatch):
  monkeypatch.setattr(embedded, "FOLDER", tmp_path)
  with pytest.raises(ValueError, match="checkpoint_8000"):
    specdec_t5x.load_model(embedded.target())


@pytest.mark.parametrize("kind", ["spec", "baseline", "eval", "eval_baseline"])
def test_the_bare_jobs_decode_the_pair(kind):
  job = (ROOT / f"configs/{kind}_ende.gin").read_text()
  assert "include 'configs/pairs/demo_ende.gin'" in job
  gin.parse_config_file(str(ROOT / "configs/pairs/demo_ende.gin"))
  for name, value in {
    "TARGET_CHECKPOINT_PATH": embedded.target(),
    "DRAFT_CHECKPOINT_PATH": embedded.draft(),
    "VOCABULARY_PATH": embedded.vocabulary(),
  }.items():
    macro = gin.query_parameter(f"{name}/macro.value")
    assert macro.scoped_configurable_fn() == value


@pytest.mark.parametrize(("target", "rows"), [(embedded.target(), 1), ("other", 16)])
def test_the_pair_decodes_one_row_at_once_and_other_pairs_sixteen(target, rows):
  gin.parse_config_file(str(ROOT / "configs/pairs/demo_ende.gin"))
  gin.bind_parameter("TARGET_CHECKPOINT_PATH/macro.value", target)
  batch_size = gin.query_parameter("BATCH_SIZE/macro.value")
  assert batch_size.scoped_configurable_fn() == rows


# ---- python -m specdec_t5x.demo. ----


def test_drafts_are_compared_with_plain_decoding(tmp_path, monkeypatch, capsys):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
  monkeypatch.setattr("sys.argv", ["demo", "--inputs=2"])
  demo.main()
  rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
  rows = [row for row in rows if row[1:2] in (["0"], ["1"])]
  names = ["no draft", "the draft", "target in 8 bits"]
  assert [row[0] for row in rows] == 2 * names
  assert [row[2] for row in rows if row[0] == "no draft"] == ["1.00", "1.00"]
  plain, ours, rounded = rows[:3]
  assert float(ours[2]) > 3
  assert {row[4] for row in (plain, ours, rounded)} == {"2 of 2"}
  assert plain[5] == ours[5]


@pytest.mark.parametrize("count", [0, 501])
def test_a_bad_number_of_inputs_is_refused(count, monkeypatch, capsys):
  monkeypatch.setattr("sys.argv", ["demo", f"--inputs={count}"])
  with pytest.raises(SystemExit):
    demo.main()
  assert f"--inputs must be 1 to 500, got {count}" in capsys.readouterr().err
