"""Names of the previous release work until the next release."""

import importlib
import json
import subprocess
import sys

import gin
import pytest

from specdec_t5x import moved
from specdec_t5x.contrib import cascade
from tests.real_data import ROOT

# The public names of the modules in that release's reference.
NAMES = json.loads((ROOT / "tests" / "names_of_0_1.json").read_text())
# Names that are gone or take different arguments: CHANGELOG.md has a list.
GONE = {
  "analysis.hierarchy": None,  # In lab, like the next module.
  "analysis.layers": None,
  "network.markov": None,
  "network.heads": {"Hydra"},
  "api": {"check_request", "shared_tokens"},
  "decoding.baseline": {"generate_plain"},
  "decoding.cost_aware": {"ByTimes"},
  "decoding.decoders": {"derived_of"},
  "decoding.generate": {"Keeper"},  # In decoding.decoders.
  "decoding.step": {"iterate"},
  "drafters.eagle": {"Eagle", "EagleTree"},
  "drafters.heads": {"HeadState"},
  "drafters.link": {"Remote", "Terms"},
  "drafters.stepwise": {"check_gamma", "likeliest_prob", "probability"},
  "network.parallel": {"ParallelConfig", "config_from_shapes", "is_parallel"},
  "policies": {"Confidence", "ExitThreshold", "Exits"},
  "training.heads": {"HeadObjective", "JointTraining"},
  "training.losses": {"calibration"},
  "training.optimizers": {"adafactor"},
  "tuning": {"say"},
}


@pytest.mark.parametrize("module", NAMES)
def test_a_module_of_the_old_reference_has_the_old_names(module):
  gone = GONE.get(module.removeprefix("specdec_t5x."), set())
  if gone is None:
    with pytest.raises(ModuleNotFoundError):
      importlib.import_module(module)
    return
  imported = importlib.import_module(module)
  assert {name for name in NAMES[module] if not hasattr(imported, name)} == gone


@pytest.mark.parametrize("old", moved.MODULES)
def test_an_old_module_name_gives_the_new_module(old):
  imported = importlib.import_module(f"specdec_t5x.{old}")
  new = importlib.import_module(f"specdec_t5x.{moved.MODULES[old]}")
  assert imported is new
  assert imported.__spec__.name == new.__name__


def test_an_unknown_name_is_an_attribute_error():
  with pytest.raises(AttributeError, match="heads' has no attribute 'Nothing'"):
    importlib.import_module("specdec_t5x.drafters.heads").Nothing  # noqa: B018


def test_a_user_s_gin_file_may_have_old_and_new_names(tmp_path):
  file = tmp_path / "mine.gin"
  file.write_text(
    "from __gin__ import dynamic_registration\n"
    "from specdec_t5x.contrib import cascade\n"
    "from specdec_t5x.drafters import cascade as old\n"
    "from specdec_t5x.drafters import copy\n"
    "cascade.Cascade.gamma = 5\n"
    "old.Cascade.window = 'flush'\n"
    "A = @cascade.Cascade\n"
    "B = @old.Cascade\n"
  )
  gin.parse_config_file(str(file))
  drafters = [gin.query_parameter(f"%{name}") for name in "AB"]
  assert [each.scoped_configurable_fn for each in drafters]
  assert {each.configurable.wrapped for each in drafters} == {cascade.Cascade}


@pytest.mark.parametrize("command", ["specdec_t5x.link"])
def test_an_old_command_runs(command):
  done = subprocess.run(
    [sys.executable, "-m", command, "--help"], capture_output=True, text=True, cwd=ROOT
  )
  assert done.returncode == 0, done.stderr
  assert "--draft" in done.stdout
