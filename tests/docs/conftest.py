"""Fixtures: the folder in which the documentation runs."""

import json
import shutil

import pytest
import seqio

from specdec_t5x.demo import embedded
from tests.docs import sandbox


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
  """Returns a folder with tiny networks at the paths of the demo's networks."""
  root = tmp_path_factory.mktemp("documented")
  (root / "pair").mkdir()
  shutil.copy(embedded.vocabulary(), root / "pair")
  card = {"gamma": 5, "tokens_per_target_call": 3.3}
  (root / "pair" / "card.json").write_text(json.dumps(card))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(embedded, "FOLDER", root / "pair")
    sandbox.make(root)
  return root


@pytest.fixture
def empty_registry(folder, monkeypatch):
  """Empties the task registry and replaces the embedded pair by a tiny pair."""
  monkeypatch.setattr(seqio.TaskRegistry, "_REGISTRY", {})
  monkeypatch.setattr(embedded, "FOLDER", folder / "pair")
