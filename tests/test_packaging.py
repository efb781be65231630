"""The distributions: their packages, dependencies and the replaced `editdistance`."""

import importlib.metadata

import pytest

from tests import commands
from tests.real_data import ROOT


def test_the_wheel_has_only_the_package(monkeypatch):
  pytest.importorskip("setuptools")
  from distutils.core import run_setup

  monkeypatch.chdir(ROOT)
  folders = run_setup("setup.py", stop_after="init").packages
  assert {name.split(".")[0] for name in folders} == {"specdec_t5x"}


def test_the_replacement_of_editdistance_gives_levenshtein_distances():
  pytest.importorskip("rapidfuzz")
  module = commands.script_module("editdistance", "t5x_runtime/editdistance")
  assert module.eval("wmt14_ende", "wmt14_ned") == 3


def test_a_wheel_s_environment_has_only_declared_dependencies(tmp_path):
  links = commands.script_module("link_dependencies", ".ci")
  names = {each.metadata["Name"].lower() for each in links.closure(links.ROOTS)}
  assert {"jax", "flax", "numpy", "absl-py"} <= names
  assert not names & {"pytest", "ruff", "hypothesis", "specdec_t5x"}
  for each in links.closure(("packaging",)):
    links.link(each, tmp_path)
  assert not list(tmp_path.iterdir())
  links.link(importlib.metadata.distribution("packaging"), tmp_path)
  assert (tmp_path / "packaging" / "version.py").is_file()
