"""The rules of imports (docs/architecture.md)."""

import pathlib
import re
import tomllib

import pytest

from scripts import house
from scripts.house import imported

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "specdec_t5x"
RULES = tomllib.loads((ROOT / "tests" / "imports.toml").read_text())
# Folders of a clone that are not in the wheel.
REPOSITORY = {"lab", "tests", "scripts"}
STATIC = set(RULES["static"])
JAX_ALONE = {"jax", "jaxtyping", "flax", "specdec_t5x", *RULES["standard"]}


def allowed(part):
  """Returns the parts that a part may import, with groups written out."""
  groups = RULES["groups"]
  return {each for name in RULES["may"][part] for each in groups.get(name, [name])}


def part_of(module):
  return module.split("/")[0].removesuffix(".py")


def modules_of(folder):
  return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))


MODULES, LAB = modules_of(PACKAGE), modules_of(ROOT / "lab")
PARTS = {part_of(module) for module in MODULES}


def forbidden(module, source):
  """Returns the forbidden imports of a module."""
  names = [name.split(".") for name in imported(source)]
  roots = {name[0] for name in names}
  ours = {n[1] for n in names if n[0] == "specdec_t5x" and len(n) > 1}
  part = part_of(module)
  found = ours & PARTS - allowed(part) - {part}
  found |= roots & REPOSITORY
  if not module.startswith(tuple(RULES["use_t5x"])):
    found |= roots & {"t5x"}
  if module.startswith(tuple(RULES["use_jax_alone"])):
    found |= roots - JAX_ALONE - ({"numpy"} if module in STATIC else set())
  return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_no_forbidden_import(module):
  assert not forbidden(module, (PACKAGE / module).read_text())


@pytest.mark.parametrize(("module", "planted", "found"), RULES["planted"])
def test_a_planted_import_is_found(module, planted, found):
  assert module in MODULES
  source = (PACKAGE / module).read_text()
  assert forbidden(module, f"{source}\n{planted}\n") == {found}


def test_a_default_decode_imports_only_the_listed_modules():
  names = {path.relative_to(PACKAGE).as_posix() for path in house.default_modules()}
  assert names == set(RULES["default"])


def test_the_sizes_of_the_code_are_printed_and_within_limits(capsys):
  assert house.main() == 0
  shown = dict(re.findall(r"^\| (.+?) \| ([\d,]+) \|$", capsys.readouterr().out, re.M))
  assert shown.keys() == RULES["most"].keys()
  for name, most in RULES["most"].items():
    assert int(shown[name].replace(",", "")) <= most, name


def test_every_part_has_a_rule():
  assert set(RULES["may"]) == PARTS


def test_the_runtime_never_imports_the_package():
  for path in (ROOT / "t5x_runtime").rglob("*.py"):
    roots = {name.split(".")[0] for name in imported(path.read_text())}
    assert not roots & {"specdec_t5x", *REPOSITORY}, path


@pytest.mark.parametrize("module", LAB)
def test_a_module_of_lab_has_no_forbidden_import(module):
  source = (ROOT / "lab" / module).read_text()
  roots = {name.split(".")[0] for name in imported(source)}
  for name, users in RULES["lab"].items():
    assert name not in roots or module.startswith(tuple(users)), name


def test_the_wheel_has_only_the_package(monkeypatch):
  pytest.importorskip("setuptools")
  from distutils.core import run_setup

  monkeypatch.chdir(ROOT)
  folders = run_setup("setup.py", stop_after="init").packages
  assert {name.split(".")[0] for name in folders} == {"specdec_t5x"}
