"""The folder where the documentation runs."""

import json
import shutil

import pytest
import seqio

from specdec_t5x.demo import embedded
from tests.docs import sandbox


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
  """A folder with tiny networks where the demo's are."""
  root = tmp_path_factory.mktemp("documented")
  (root / "pair").mkdir()
  shutil.copy(embedded.vocabulary(), root / "pair")
  card = {"alpha": {"T=0": {"value": 0.75}}}
  (root / "pair" / "card.json").write_text(json.dumps(card))
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(embedded, "FOLDER", root / "pair")
    sandbox.make(root)
  return root


@pytest.fixture
def own_tasks(folder, monkeypatch):
  """A page's tasks are its own, as those of another process, and its pair is tiny."""
  monkeypatch.setattr(seqio.TaskRegistry, "_REGISTRY", {})
  monkeypatch.setattr(embedded, "FOLDER", folder / "pair")
