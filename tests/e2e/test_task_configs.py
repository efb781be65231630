"""Gin files of tasks without a pair; settings of networks."""

import pathlib
import re

import gin
import pytest

from benchmarks import sizes
from specdec_t5x.network.config import T5Config
from specdec_t5x.t5x_bridge import required
from tests.e2e import runs
from tests.e2e.test_drafters import built

CONFIGS = (
  *(f"configs/spec_{name}.gin" for name in ("xsum", "humaneval", "instructions")),
  *(
    f"configs/{kind}_{task}.gin"
    for kind in ("spec", "baseline", "eval", "eval_baseline")
    for task in ("cnndm", "lm")
  ),
)


@pytest.mark.parametrize("config", CONFIGS)
def test_each_file_names_its_path_and_an_existing_pair(config, monkeypatch):
  monkeypatch.chdir(runs.ROOT)
  text = pathlib.Path(config).read_text()
  assert f"CONFIG = '{config}'" in text
  assert "include 'configs/pairs/none.gin'" in text
  own = re.search("EXAMPLE_PAIR = '(.*)'", text)
  gin.parse_config_file("configs/pairs/none.gin")
  example = own[1] if own else gin.query_parameter("EXAMPLE_PAIR/macro.value")
  assert pathlib.Path(example).is_file()
  with pytest.raises(ValueError, match=f"{config} needs a target.*{example}"):
    required.pair(config, example)


@pytest.mark.parametrize("pair", sorted(runs.ROOT.glob("configs/pairs/flan_t5_*.gin")))
def test_flan_pairs_have_the_sizes_of_t5_1_1(pair, monkeypatch):
  monkeypatch.chdir(runs.ROOT)
  gin.parse_config_file(str(pair))
  for scope, size in zip(("target", "draft"), pair.stem.split("_")[2:], strict=True):
    with gin.config_scope(scope):
      found = gin.get_configurable(T5Config)()
    assert found == sizes.t5_1_1(size)


# PRODUCTS reaches every network of a run. WEIGHTS and HEAD reach the target alone.
SET = {"PRODUCTS": "xla", "WEIGHTS": "int8", "HEAD": "full"}


@pytest.mark.parametrize(
  "name", ["spec_ende", "baseline_ende", "spec_lm", "baseline_lm"]
)
def test_products_are_set_for_target_and_draft(name):
  files = [f"configs/{name}.gin"]
  paths = {}
  if name.endswith("_lm"):
    files.append("configs/pairs/gpt_97m_6m.gin")
    names = ("TARGET_CHECKPOINT_PATH", "DRAFT_CHECKPOINT_PATH", "VOCABULARY_PATH")
    paths = dict.fromkeys(names, "somewhere")
  for bindings, target, draft in (
    ({}, ("auto", "float32", "auto"), ("auto", "float32", "auto")),
    (SET, ("xla", "int8", "full"), ("xla", "float32", "auto")),
  ):
    decoder = built(files, paths | bindings)
    found = {
      network: (each.config.products, each.config.weights, each.config.head)
      for network, each in decoder.networks.items()
    }
    expected = {"target": target, "draft": draft}
    assert found == {network: expected[network] for network in found}
    assert ("draft" in found) == name.startswith("spec")
