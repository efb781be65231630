"""Parts of the suite: quick files, XLA flags, the wheel's links."""

import doctest
import importlib.metadata

import pytest

from tests import commands, suite, xla_flags
from tests.real_data import ROOT


def test_examples_in_docstrings():
  result = doctest.testmod(suite)
  assert result.attempted > 1
  assert result.failed == 0


def test_recorded_files_exist_and_quick_files_are_within_the_budgets():
  files = suite.recorded()
  spent = {}
  assert not [name for name in files if not (ROOT / "tests" / name).is_file()]
  for name in suite.quick_files(files, suite.BUDGETS):
    folder = suite.folder_of(name)
    cost = files[name]
    spent[folder] = spent.get(folder, 0) + cost["cpu"] - cost["slow_cpu"]
  assert spent
  for folder, seconds in spent.items():
    assert seconds <= suite.BUDGETS.get(folder, suite.DEFAULT_BUDGET)


def test_unknown_xla_flags_are_left_out_and_tried_once(tmp_path, monkeypatch):
  known_flag = "--xla_backend_optimization_level=0"
  unknown_flag = "--xla_no_such_flag=1"
  assert xla_flags.accepted([known_flag, unknown_flag], tmp_path) == [known_flag]
  monkeypatch.setattr(xla_flags, "_starts", None)
  assert xla_flags.accepted([known_flag, unknown_flag], tmp_path) == [known_flag]


def test_the_replacement_of_editdistance_gives_levenshtein_distances():
  pytest.importorskip("rapidfuzz")
  module = commands.script_module("editdistance", "t5x_runtime/editdistance")
  assert doctest.testmod(module).failed == 0
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
