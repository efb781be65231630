"""Gin files: the decoder that gin builds, and the output of the command.

tests/docs decodes greedily with most gin files of the table. tests/test_table.py
compares coupled samples and the remaining ways' greedy outputs.
"""

import contextlib
import copy
import os
import pathlib
import re

import gin
import pytest
import t5x
from t5x import gin_utils
from t5x import infer as t5x_infer

from benchmarks import sizes
from lab.link import process
from specdec_t5x.core.describe import describe
from specdec_t5x.network.config import T5Config
from specdec_t5x.t5x_bridge import macros
from tests import commands, table
from tests.e2e import runs
from tests.t5x_bridge import tiny
from tests.training.conftest import saved


@pytest.fixture(scope="session")
def models():
  return table.models(tiny.TARGET, tiny.DRAFT)


@pytest.fixture(scope="session")
def checkpoints(models, tmp_path_factory):
  """Returns a function from a network's name to the path of a checkpoint."""
  paths = {}

  def path_of(name):
    if name not in paths:
      root = tmp_path_factory.mktemp("network")
      model = models[name]
      paths[name] = saved(model.network, root, model.params)
    return paths[name]

  return path_of


@pytest.fixture
def settings(pair, checkpoints):
  """Returns a function from a row to gin files and bindings."""
  macros = {
    "draft": "DRAFT_CHECKPOINT_PATH",
    "draft_2": "DRAFT_2_CHECKPOINT_PATH",
    "ngrams": "NGRAMS_CHECKPOINT_PATH",
  }

  def settings(row):
    paths = {macros[name]: checkpoints(model) for name, model in row.networks.items()}
    files = [f"configs/{name}.gin" for name in row.gin]
    gin_files = ["configs/spec_ende.gin", str(pair[0]), *files]
    return gin_files, {"GAMMA": 3, **paths, **row.macros}

  return settings


def built(gin_files, bindings):
  """Returns the decoder that gin builds from files and bindings, without parameters."""
  assignments = [f"{name} = {value!r}" for name, value in bindings.items()]
  paths = [".", os.path.dirname(os.path.dirname(t5x.__file__))]
  with (
    commands.own_flags(lambda: None),
    commands.as_main(t5x_infer),
    contextlib.chdir(runs.ROOT),
  ):
    # The command makes the function configurable as well.
    gin.configurable(t5x_infer.infer)
    gin_utils.parse_gin_flags(paths, gin_files, assignments)
    return copy.deepcopy(gin.query_parameter("%DECODER"))  # The query makes the object.


def without_networks(description):
  """Removes the networks from a drafter's description: gin sets different sizes."""
  if not isinstance(description, dict):
    return description
  named = {name: without_networks(x) for name, x in description.items()}
  return {name: x for name, x in named.items() if name not in ("network", "table")}


@pytest.mark.slow
@pytest.mark.parametrize("name", table.IN_GIN)
def test_gin_builds_the_drafter_rule_and_policy_of_the_table(name, settings, models):
  row = table.IN_GIN[name]
  decoder = built(*settings(row))
  drafter = row.of_networks(models)
  found, expected = (
    without_networks(describe(each)) for each in (decoder.drafter, drafter)
  )
  # Gin leaves the default length to the drafter, and the table names it.
  for each in (found, expected):
    for name in ("gamma", "shape"):
      each.pop(name, None)
  assert found == expected
  assert decoder.drafter.tree == drafter.tree
  assert decoder.drafter.networks.keys() == drafter.networks.keys()
  assert describe(decoder.policy) == describe(row.policy)
  assert type(decoder.rule).__name__.lower() == row.rule


@pytest.mark.slow
def test_a_tree_of_two_checkpoints_keeps_the_outputs(settings, speculative, tmp_path):
  """Draft lengths come from the policy, so the times of iterations are recorded."""
  gin_files, bindings = settings(table.IN_GIN["parallel by ngrams"])
  bindings |= {"INFER_OUTPUT_DIR": str(tmp_path), "GAMMA_POLICY": "auto"}
  runs.completed(*gin_files, **bindings)
  assert runs.tokens(tmp_path) == runs.tokens(speculative)
  summary = runs.summary(tmp_path)
  assert summary["guarantee"] == "EXACT"
  times = [x for x in summary["iteration_seconds"] if x["rows"] == 8]
  assert times
  assert all(len(x["seconds"]) == len(x["drafted"]) for x in times)


@pytest.mark.slow
def test_a_draft_process_gives_the_target_s_outputs(pair, speculative, tmp_path):
  with process.drafting(pair[1]) as address:
    runs.completed(
      *("configs/spec_ende.gin", pair[0], "configs/contrib/link.gin"),
      INFER_OUTPUT_DIR=str(tmp_path),
      **{"GAMMA": 3, "LINK_ADDRESS": address, "LINK_TOPK": 4},
    )
  assert runs.tokens(tmp_path) == runs.tokens(speculative)
  summary = runs.summary(tmp_path)
  assert summary["decoder"]["drafter"]["remote"]["address"] == address
  assert summary["counted"]["tokens"] >= summary["statistics"]["drafted"] > 0
  assert summary["counted"]["lost"] == 0


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
    macros.missing_pair(config, example)


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
