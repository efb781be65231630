"""The folder where the documentation runs."""

import pytest
import seqio

from tests.docs import sandbox


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
  """A folder with tiny networks where the demo's are."""
  root = tmp_path_factory.mktemp("documented")
  sandbox.make(root)
  return root


@pytest.fixture
def own_tasks(monkeypatch):
  """A page's tasks are its own, as those of another process."""
  monkeypatch.setattr(seqio.TaskRegistry, "_REGISTRY", {})
