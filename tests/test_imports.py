"""A part of the package imports from its row of FLOORS and from the rows above."""

import ast

from tests.real_data import ROOT

FLOORS = """t5x
core lazy platforms quiet console
native network hugging_face programs
decoding
drafters vocabularies prepared speed
data checkpoints tuning
ways groups arguments environment
t5x_bridge api __init__
training train trace __main__
contrib demo"""
FLOOR = {part: n for n, row in enumerate(FLOORS.split("\n")) for part in row.split()}
USE = {x: {"t5x"} for x in ("t5x", "t5x_bridge", "train")}


def forbidden(part, source):
  """Yields the imports that a module of a part must not have."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import | ast.ImportFrom):
      module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
      for root, _, rest in ((module + x.name).partition(".") for x in node.names):
        is_above = FLOOR.get(rest.split(".")[0], 1) > FLOOR[part]
        outside = {"t5x", "lab", "tests", "benchmarks"} - USE.get(part, set())
        if root in outside or (root == "specdec_t5x" and is_above):
          yield f"{root}.{rest}"


def test_no_import_runs_upwards_and_a_planted_one_is_found():
  paths = [ROOT.glob(f"{x}/**/*.py") for x in ("specdec_t5x", "t5x_runtime/t5x")]
  for path in (path for group in paths for path in group):
    part = path.relative_to(ROOT).parts[1].removesuffix(".py")
    assert not [*forbidden(part, path.read_text())], path
  assert [*forbidden("drafters", "def f():\n  from specdec_t5x import tuning")]
