"""Drafters and rules set in gin: the decoder that gin builds and the command's output.

tests/docs decodes greedily with most gin files of the table. tests/test_ways.py
compares coupled samples and the remaining ways' greedy outputs.
"""

import contextlib
import copy
import os

import gin
import pytest
import t5x
from t5x import gin_utils
from t5x import infer as t5x_infer

from lab.link import process
from specdec_t5x.core.describe import describe
from specdec_t5x.t5x_bridge.restore import T5XParameters
from tests import commands, ways
from tests.e2e import runs
from tests.t5x_bridge import tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def models():
  """Returns the draft networks for the tiny pair's target by name."""
  return ways.models(tiny.TARGET, tiny.DRAFT)


@pytest.fixture(scope="session")
def checkpoints(models, tmp_path_factory):
  """Returns a function from a network's name to the path of a checkpoint."""
  paths = {}

  def path_of(name):
    if name not in paths:
      root = tmp_path_factory.mktemp("network")
      model = models[name]
      T5XParameters(model.network, str(root)).save(1, model.params)
      paths[name] = str(root / "checkpoint_1")
    return paths[name]

  return path_of


@pytest.fixture
def settings(pair, checkpoints):
  """Returns a function from a way to gin files and bindings."""
  macros = {
    "draft": "DRAFT_CHECKPOINT_PATH",
    "draft_2": "DRAFT_2_CHECKPOINT_PATH",
    "ngrams": "NGRAMS_CHECKPOINT_PATH",
  }

  def settings(way):
    paths = {macros[name]: checkpoints(model) for name, model in way.models.items()}
    files = [f"configs/{name}.gin" for name in way.files]
    gin_files = ["configs/spec_ende.gin", str(pair[0]), *files]
    return gin_files, {"GAMMA": 3, **paths, **way.bindings}

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


@pytest.mark.parametrize("name", ways.IN_GIN)
def test_gin_builds_the_drafter_rule_and_policy_of_the_table(name, settings, models):
  way = ways.IN_GIN[name]
  decoder = built(*settings(way))
  drafter = way.drafter(ways.networks_of(models))
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
  assert describe(decoder.policy) == describe(way.policy)
  assert type(decoder.rule).__name__.lower() == way.rule


def test_a_tree_of_two_checkpoints_keeps_the_outputs(settings, speculative, tmp_path):
  """Draft lengths come from the policy, so the times of iterations are recorded."""
  gin_files, bindings = settings(ways.IN_GIN["parallel by ngrams"])
  bindings |= {"INFER_OUTPUT_DIR": str(tmp_path), "GAMMA_POLICY": "auto"}
  runs.completed(*gin_files, **bindings)
  assert runs.tokens(tmp_path) == runs.tokens(speculative)
  summary = runs.summary(tmp_path)
  assert summary["guarantee"] == "EXACT"
  times = [x for x in summary["iteration_seconds"] if x["rows"] == 8]
  assert times
  assert all(len(x["seconds"]) == len(x["drafted"]) for x in times)


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
