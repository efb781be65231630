"""Fixtures: a tiny pair of networks and the output of a speculative run."""

import pytest

from tests.e2e import runs
from tests.t5x_bridge import tiny


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
  root = tmp_path_factory.mktemp("e2e")
  gin_file = runs.tiny_pair(root, runs.EXAMPLES)
  draft = tiny.save_t5x(root / "draft", tiny.DRAFT, seed=2, format="orbax")
  return gin_file, draft


@pytest.fixture(scope="session")
def infer(pair):
  def infer(output, *gin_files, config="spec_ende", flags=(), **bindings):
    drafts = {"DRAFT_CHECKPOINT_PATH": pair[1], "GAMMA": 3}
    return runs.completed(
      *(f"configs/{config}.gin", pair[0], *gin_files),
      flags=flags,
      INFER_OUTPUT_DIR=str(output),
      **{**(drafts if config == "spec_ende" else {}), **bindings},
    )

  return infer


@pytest.fixture(scope="session")
def speculative(infer, tmp_path_factory):
  output = tmp_path_factory.mktemp("speculative")
  infer(output)
  return output
