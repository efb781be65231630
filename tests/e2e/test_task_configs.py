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


def test_a_beam_reads_every_knob_of_the_decoder_that_it_stands_in_for():
  knobs, beam = (
    lambda part, file=file: _bound(part, runs.ROOT / "configs" / "runs" / file)
    for file in ("speculative.gin", "beam.gin")
  )
  assert "%LENIENCE" in knobs("parts.rule")
  assert "@parts.drafter()" in beam("parts.beam")
  expected = {*knobs("parts.rule"), *knobs("decoders.SpeculativeDecoder")}
  assert expected - {"@parts.rule()"} <= beam("parts.beam")


def _bound(part, file):
  """Returns what a gin file binds to the parameters of a part."""
  block = re.search(rf"^{part}:\n(  .*\n)+", file.read_text(), re.M)[0]
  return set(re.findall(r"= ([%@].+)", block))
