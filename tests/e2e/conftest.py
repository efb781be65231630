"""A tiny pair, and what a speculative run of it writes."""

import pytest

from tests.e2e import runs
from tests.t5x_bridge import tiny


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
  """The gin file of a tiny pair and the draft's checkpoint."""
  root = tmp_path_factory.mktemp("e2e")
  gin_file = runs.tiny_pair(root, runs.EXAMPLES)
  return gin_file, tiny.save_orbax(root / "draft", tiny.DRAFT, seed=2)


@pytest.fixture(scope="session")
def speculative(pair, tmp_path_factory):
  """A finished speculative run: its directory."""
  gin_file, draft = pair
  output = tmp_path_factory.mktemp("speculative")
  runs.completed(
    *("configs/spec_ende.gin", gin_file),
    DRAFT_CHECKPOINT_PATH=draft,
    INFER_OUTPUT_DIR=str(output),
    GAMMA=3,
  )
  return output
