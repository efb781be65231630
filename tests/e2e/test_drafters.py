"""Ways to draft and to verify, set in gin: what gin builds, and what the command gives.

tests/docs runs most gin files of the table; the rest of them decode here.
"""

import contextlib
import copy
import os

import gin
import pytest
import t5x
from t5x import gin_utils
from t5x import infer as t5x_infer

from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.core.describe import describe
from specdec_t5x.link import process
from tests import commands, ways
from tests.e2e import runs
from tests.t5x_bridge import tiny

EXAMPLE = "examples/write_a_drafter.gin"
# What no page of the documentation decodes greedily.
DECODED = (
  *("tree", "candidates", "budget", "biased", "trimmed eagle"),
  *("shared encoder in a tree", "parallel by ngrams", "cascade that ends early"),
)


@pytest.fixture(scope="session")
def models():
  """The networks that draft for the tiny pair's target, by name."""
  return ways.models(tiny.TARGET, tiny.DRAFT)


@pytest.fixture(scope="session")
def checkpoints(models, tmp_path_factory):
  """A function from the name of a network to the path of its checkpoint."""
  paths = {}

  def path_of(name):
    if name not in paths:
      root, model = tmp_path_factory.mktemp("network"), models[name]
      T5XParameters(model.network, str(root)).save(1, model.params)
      paths[name] = str(root / "checkpoint_1")
    return paths[name]

  return path_of


@pytest.fixture
def settings(pair, checkpoints):
  """A function from a way to its gin files and bindings."""
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


@pytest.fixture
def drafted(pair, tmp_path):
  """Runs the pair with more gin files; returns the outputs and what the run records."""

  def run(*gin_files, draft=pair[1], **bindings):
    printed = runs.completed(
      *("configs/spec_ende.gin", pair[0], *gin_files),
      INFER_OUTPUT_DIR=str(tmp_path / "out"),
      **{"DRAFT_CHECKPOINT_PATH": draft} if draft else {},
      **{"GAMMA": 3, **bindings},
    )
    return runs.tokens(tmp_path / "out"), runs.summary(tmp_path / "out"), printed

  return run


def built(gin_files, bindings):
  """Returns the decoder that gin makes of files and bindings; nothing is restored."""
  given = [f"{name} = {value!r}" for name, value in bindings.items()]
  paths = [".", os.path.dirname(os.path.dirname(t5x.__file__))]
  with (
    commands.own_flags(lambda: None),
    commands.as_main(t5x_infer),
    contextlib.chdir(runs.ROOT),
  ):
    gin.configurable(t5x_infer.infer)  # As the command does.
    gin_utils.parse_gin_flags(paths, gin_files, given)
    return copy.deepcopy(gin.query_parameter("%DECODER"))  # Which makes it.


def without_networks(description):
  """A drafter's description but for its networks, which have other sizes in gin."""
  if not isinstance(description, dict):
    return description
  named = {name: without_networks(x) for name, x in description.items()}
  return {name: x for name, x in named.items() if name not in ("network", "table")}


@pytest.mark.parametrize("name", ways.IN_GIN)
def test_gin_builds_the_table_s_drafter_rule_and_policy(name, settings, models):
  way = ways.IN_GIN[name]
  decoder = built(*settings(way))
  drafter = way.drafter(ways.networks_of(models))
  found, expected = (
    without_networks(describe(each)) for each in (decoder.drafter, drafter)
  )
  assert found == expected
  assert decoder.drafter.networks.keys() == drafter.networks.keys()
  assert describe(decoder.policy) == describe(way.policy)
  assert type(decoder.rule).__name__.lower() == way.rule


@pytest.mark.parametrize("name", DECODED)
def test_each_way_to_draft_gives_the_target_s_own_outputs(
  name, settings, speculative, tmp_path
):
  gin_files, bindings = settings(ways.IN_GIN[name])
  runs.completed(*gin_files, INFER_OUTPUT_DIR=str(tmp_path), **bindings)
  assert runs.tokens(tmp_path) == runs.tokens(speculative)
  summary = runs.summary(tmp_path)
  assert summary["guarantee"] == "EXACT"
  if bindings["GAMMA"] is not None:
    assert summary["statistics"]["drafted"] > 0
    return
  times = [x for x in summary["iteration_seconds"] if x["rows"] == 8]
  assert times
  assert all(len(x["seconds"]) == len(x["drafted"]) for x in times)


def test_rounded_weights_are_recorded(settings, speculative, tmp_path):
  gin_files, bindings = settings(ways.IN_GIN["cascade on rounded weights"])
  runs.completed(*gin_files, INFER_OUTPUT_DIR=str(tmp_path), **bindings)
  assert runs.tokens(tmp_path) == runs.tokens(speculative)
  (size,) = runs.summary(tmp_path)["derived"].values()
  assert 0 < size["bytes"] < size["bytes_of_target"]


def test_a_draft_in_another_process_gives_them_too(drafted, pair, speculative):
  with process.drafting(pair[1]) as address:
    tokens, summary, _ = drafted(
      "configs/drafters/link.gin", draft=None, LINK_ADDRESS=address, LINK_TOPK=4
    )
  assert tokens == runs.tokens(speculative)
  assert summary["decoder"]["drafter"]["remote"]["address"] == address
  assert summary["counted"]["tokens"] >= summary["statistics"]["drafted"] > 0
  assert summary["counted"]["lost"] == 0


def test_a_tree_samples(drafted):
  _, summary, _ = drafted("configs/drafters/tree.gin", TEMPERATURE=1.0, STEM=1)
  decoder = summary["decoder"]
  assert decoder["rule"] == {"kind": "Traversal"}
  assert decoder["drafter"]["siblings"] == "distinct"
  assert decoder["drafter"]["tree"]["parents"] == [0, 1, 1, 2, 3]
  assert summary["statistics"]["accepted"] > 0


def test_a_beam_finds_the_hypotheses_of_its_baseline(drafted, pair, tmp_path):
  beam = {"BEAM_SIZE": 2, "BEAM_ALPHA": 0.3}
  tokens, summary, _ = drafted("configs/runs/beam.gin", DRAFT_BEAM_SIZE=4, **beam)
  decoder = summary["decoder"]
  assert decoder["kind"] == "BeamDecoder"
  assert (decoder["gamma"], decoder["alpha"]) == (3, 0.3)
  assert summary["guarantee"] == "GREEDY_EXACT"
  runs.completed(
    *("configs/baseline_ende.gin", pair[0], "configs/runs/beam_baseline.gin"),
    INFER_OUTPUT_DIR=str(tmp_path / "plain"),
    **beam,
  )
  assert runs.tokens(tmp_path / "plain") == tokens
  assert runs.summary(tmp_path / "plain")["decoder"]["draft"] is None


def test_a_drafter_of_one_s_own_needs_none_of_our_files(drafted, speculative):
  tokens, summary, _ = drafted(EXAMPLE, draft=None)
  assert tokens == runs.tokens(speculative)
  assert summary["decoder"]["drafter"] == {"kind": "Echo", "gamma": 3}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_rule_of_one_s_own_needs_none_of_our_files(drafted, temperature):
  rule = "examples/write_a_rule.gin"
  _, summary, printed = drafted(rule, TEMPERATURE=temperature)
  assert printed.startswith("LOSSY: this run keeps nothing of the target's")
  assert summary["decoder"]["rule"] == {"kind": "Plausible", "share": 0.3}
  assert summary["statistics"]["alpha_by_mass"] is None
