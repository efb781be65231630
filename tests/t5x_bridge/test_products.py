"""PRODUCTS reaches every network of a run, WEIGHTS and HEAD the target alone."""

import gin
import pytest
from t5x import infer

from specdec_t5x.network import config
from tests import commands
from tests.real_data import ROOT

T5, GPT = config.T5Config, config.GptConfig


@pytest.mark.parametrize(
  ("file", "kind", "networks"),
  [
    ("spec_ende", T5, ("target", "draft")),
    ("spec_cnndm", T5, ("target", "draft")),
    ("baseline_ende", T5, ("target",)),
    ("spec_lm", GPT, ("target", "draft")),
    ("baseline_lm", GPT, ("target",)),
  ],
)
def test_products_are_set_for_target_and_draft(file, kind, networks, monkeypatch):
  monkeypatch.chdir(ROOT)
  with commands.own_flags(lambda: None), commands.as_main(infer):
    gin.configurable(infer.infer)
    files = [f"configs/{file}.gin"]
    for bindings, expected in (([], "auto"), (["PRODUCTS = 'xla'"], "xla")):
      gin.parse_config_files_and_bindings(files, bindings, skip_unknown=False)
      make = gin.get_configurable(kind)
      for network in networks:
        with gin.config_scope(network):
          assert make().products == expected
          assert make().weights == "float32"
      gin.clear_config()
    bindings = ["WEIGHTS = 'int8'", "HEAD = 'full'"]
    gin.parse_config_files_and_bindings(files, bindings, skip_unknown=False)
    for network in networks:
      with gin.config_scope(network):
        expected = "int8" if network == "target" else "float32"
        made = gin.get_configurable(kind)()
        assert made.weights == expected
        assert made.head == ("full" if network == "target" else "auto")
    gin.clear_config()
