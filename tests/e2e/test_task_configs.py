"""Configurations whose tasks have no demo pair, and the one of a beam."""

import pathlib
import re

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


def test_a_beam_reads_every_knob_of_the_model_that_it_stands_in_for():
  read = lambda name: (runs.ROOT / "configs" / "runs" / name).read_text()
  block = re.search(
    r"^model.SpeculativeEncoderDecoderModel:\n(  .*\n)+", read("speculative.gin"), re.M
  )
  model = re.search(r"^beam.SpeculativeBeamModel:\n(  .*\n)+", read("beam.gin"), re.M)
  knobs = re.findall(r"= ([%@].+)", block[0])
  assert "%CONFIDENCE" in knobs
  assert set(knobs) <= set(re.findall(r"= ([%@].+)", model[0]))
