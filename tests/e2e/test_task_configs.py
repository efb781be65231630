"""Gin files of tasks without a pair and of beam search; settings of networks."""

import os
import pathlib
import re

import gin
import pytest

from specdec_t5x.network import sizes
from specdec_t5x.network.config import T5Config
from specdec_t5x.t5x_bridge import required
from tests import commands, processes
from tests.docs import sandbox
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


def test_a_beam_reads_every_knob_of_the_speculative_decoder():
  knobs, beam = (
    lambda part, file=file: _bound(part, runs.ROOT / "configs" / file)
    for file in ("runs/speculative.gin", "contrib/beam.gin")
  )
  assert "%LENIENCE" in knobs("build.rule_for")
  assert "@build.drafter_for()" in beam("decoder.beam")
  parts = {"@build.rule_for()", "@build.policy_for()"}
  part_knobs = knobs("build.rule_for") | knobs("build.policy_for")
  expected = part_knobs | knobs("decoders.SpeculativeDecoder") - parts
  # The drafter has GAMMA. ALPHA belongs to policies, and a beam has no policy.
  assert expected - {"%GAMMA", "%ALPHA"} <= beam("decoder.beam")


def _bound(part, file):
  """Returns the references that a gin file binds to the parameters of a part."""
  block = re.search(rf"^{part}:\n(  .*\n)+", file.read_text(), re.M)[0]
  return set(re.findall(r"= ([%@].+)", block))


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


def test_a_run_is_compiled_ahead(tmp_path, monkeypatch, capsys):
  """No checkpoint exists. Several devices: tests/t5x_bridge/test_devices.py."""
  gin_file = runs.tiny_pair(tmp_path, examples=1)
  monkeypatch.setenv("XLA_FLAGS", "")
  monkeypatch.chdir(runs.ROOT)
  _, _, _, *arguments = runs.command(
    *("configs/spec_ende.gin", gin_file),
    flags=["--devices=2"],
    TARGET_CHECKPOINT_PATH=None,
    DRAFT_CHECKPOINT_PATH=None,
    GAMMA=3,
  )
  with commands.own_flags(lambda: None):
    sandbox.run_script("scripts/compile_ahead.py", *arguments)
  mesh, params, temporary, _ = capsys.readouterr().out.splitlines()
  assert mesh.startswith("Mesh: 1 (data) x 1 (model).")
  assert params.startswith("parameters ")
  assert temporary.startswith("temporary ")
  # JAX counts devices once, so JAX is imported after the number of devices is set.
  assert os.environ["XLA_FLAGS"].endswith("device_count=2")
  modules = "import sys, scripts.compile_ahead; print('jax' in sys.modules)"
  assert processes.printed("-c", modules) == "False\n"
