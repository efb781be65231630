"""The output of an import is held back, and shown if the import fails."""

import os
import sys

import pytest

from specdec_t5x.quiet import import_quietly

NOISY = "import os\nos.write(2, b'noise of {name}')\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(str(tmp_path))
  return lambda name, text: (tmp_path / f"{name}.py").write_text(text)


def test_a_module_is_imported_without_output(module, capfd):
  module("noisy_module", NOISY.format(name="success") + "VALUE = 3\n")
  assert import_quietly("noisy_module").VALUE == 3
  assert capfd.readouterr().err == ""


def test_a_failing_import_shows_the_output(module, capfd):
  module("noisy_failure", NOISY.format(name="failure") + "raise RuntimeError('no')\n")
  with pytest.raises(RuntimeError, match="no"):
    import_quietly("noisy_failure")
  assert capfd.readouterr().err == "noise of failure"


def test_a_module_is_imported_without_stderr(module, monkeypatch):
  module("module_without_stderr", "VALUE = 3\n")
  monkeypatch.setattr(sys, "stderr", None)
  saved = os.dup(2)
  os.close(2)
  try:
    assert import_quietly("module_without_stderr").VALUE == 3
  finally:
    os.dup2(saved, 2)
    os.close(saved)
