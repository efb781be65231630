"""Who may import whom (docs/architecture.md)."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "specdec_t5x"
ALLOWED = {
  "core": set(),
  "network": {"core"},
  "analysis": {"core", "decoding"},
  "drafters": {"core"},
  "decoding": {"core"},
  "data": {"core", "network"},
  "training": {"core", "network", "data"},
  "t5x_bridge": {"core", "network", "analysis", "drafters", "decoding", "data"},
}
for top in ("demo", "report", "bench"):
  ALLOWED[top] = {*ALLOWED, top}
ALLOWED["demo"].add("bench")  # Its table.


def imported(path):
  for node in ast.walk(ast.parse(path.read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules():
  return sorted(PACKAGE.glob("*/*.py"))


@pytest.mark.parametrize("path", modules(), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_room_imports_only_the_rooms_below_it(path):
  room = path.parent.name
  names = [name.split(".") for name in imported(path)]
  rooms = {n[1] for n in names if n[0] == "specdec_t5x" and len(n) > 1}
  assert rooms & set(ALLOWED) <= ALLOWED[room] | {room}
  if room not in ("t5x_bridge",):
    assert "t5x" not in {name[0] for name in names}


def test_the_core_and_the_loop_need_jax_alone():
  allowed = {"jax", "jaxtyping", "flax", "specdec_t5x"}
  standard = {"abc", "dataclasses", "collections", "enum", "typing"} | {
    "math",
    "numbers",
  }
  for room in ("core", "drafters", "decoding"):
    for path in (PACKAGE / room).glob("*.py"):
      roots = {name.split(".")[0] for name in imported(path)}
      assert roots <= allowed | standard, path


def test_every_room_has_its_rule():
  rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
  assert rooms <= set(ALLOWED)


def test_the_runtime_never_imports_the_package():
  for path in (ROOT / "t5x_runtime").rglob("*.py"):
    assert "specdec_t5x" not in {name.split(".")[0] for name in imported(path)}
