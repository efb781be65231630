"""Configurations whose tasks have no demo pair."""

import pathlib

import gin
import pytest

from specdec_t5x.t5x_bridge import required
from tests.e2e import runs

CONFIGS = ("configs/spec_xsum.gin", "configs/spec_humaneval.gin")


@pytest.mark.parametrize("config", CONFIGS)
def test_each_names_itself_and_a_pair_that_is_there(config, monkeypatch):
  monkeypatch.chdir(runs.ROOT)
  assert f"CONFIG = '{config}'" in pathlib.Path(config).read_text()
  gin.clear_config()
  gin.parse_config_file("configs/pairs/none.gin")
  example = gin.query_parameter("EXAMPLE_PAIR/macro.value")
  assert pathlib.Path(example).is_file()
  with pytest.raises(ValueError, match=f"{config} needs a target.*{example}"):
    required.pair(config, example)
  gin.clear_config()
