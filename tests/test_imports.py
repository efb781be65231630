"""Who may import whom (docs/architecture.md)."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "specdec_t5x"
LOOP = {"beam", "core", "decoding", "drafters", "native", "network", "policies"}
BESIDE = {"hugging_face", "checkpoints", "build", "tuning", "analysis", "data"}
LIBRARY = LOOP | BESIDE | {"t5x_bridge", "api", "training"}
# What each package, and each module beside them, may import of the others.
ALLOWED = {
  "__init__": {"api", "quiet", "training"},
  "core": set(),
  "native": {"core"},
  "hugging_face": {"core", "network"},
  "network": {"core", "native"},
  "decoding": {"core", "native", "network"},
  "drafters": {"core", "decoding", "network", "policies"},
  "beam": {"core", "decoding", "network"},
  "policies": {"core", "decoding"},
  "tuning": {"core", "decoding", "native", "network"},
  "analysis": {"core", "decoding"},
  "data": {"core", "hugging_face", "network"},
  "checkpoints": {"core", "data", "hugging_face", "network"},
  "build": LOOP | {"checkpoints", "tuning"},
  "t5x_bridge": (LOOP | BESIDE) - {"build"},
  "api": (LOOP | BESIDE) - {"data"},
  "training": LIBRARY | {"tables"},
  "train": {"training", "quiet"},
  "export": {"quiet", "t5x_bridge"},
  "convert": LIBRARY | {"quiet"},
  "merge_shards": set(),
  "quiet": set(),
  "tables": set(),
  "trace": LIBRARY,
  "doctor": {"quiet", "demo"},
  "link": LIBRARY | {"quiet"},
  "diagnose": LIBRARY | {"quiet", "tables", "trace", "demo"},
  "bench": LIBRARY | {"quiet", "tables", "diagnose", "link"},
  "demo": LIBRARY | {"quiet", "tables", "bench", "train"},
}
USE_T5X = (
  *("checkpoints/readers.py", "checkpoints/parameters.py", "t5x_bridge/"),
  *("bench/peers/", "train.py", "export.py"),
)
USE_JAX_ALONE = ("beam/", "core/", "decoding/", "drafters/", "policies.py")
JAX_ALONE = {"jax", "jaxtyping", "flax", "specdec_t5x"} | {
  *("abc", "collections", "dataclasses", "enum", "functools", "itertools", "math"),
  *("numbers", "typing"),
}
# Static trees, tables and lengths are NumPy's: known when programs are compiled.
STATIC = (
  *("core/tree.py", "core/shared_tokens.py", "decoding/cost_aware.py"),
  "drafters/siblings.py",
)


def imported(source):
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "a relative import"
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(module):
  return module.split("/")[0].removesuffix(".py")


MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
PARTS = {part_of(module) for module in MODULES}


def forbidden(module, source):
  """Returns what a module imports and should not."""
  names = [name.split(".") for name in imported(source)]
  roots = {name[0] for name in names}
  ours = {n[1] for n in names if n[0] == "specdec_t5x" and len(n) > 1}
  part = part_of(module)
  found = ours & PARTS - ALLOWED[part] - {part}
  if not module.startswith(USE_T5X):
    found |= roots & {"t5x"}
  if module.startswith(USE_JAX_ALONE):
    found |= roots - JAX_ALONE - ({"numpy"} if module in STATIC else set())
  return found


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_it_may(module):
  assert not forbidden(module, (PACKAGE / module).read_text())


@pytest.mark.parametrize(
  ("module", "planted", "found"),
  [
    ("core/token.py", "from specdec_t5x import api", "api"),
    ("core/token.py", "def f():\n  import specdec_t5x.decoding.step", "decoding"),
    ("decoding/step.py", "import numpy", "numpy"),
    ("decoding/generate.py", "import time", "time"),
    ("decoding/decoders.py", "from specdec_t5x import tuning", "tuning"),
    ("decoding/policy.py", "from specdec_t5x.policies import CostAware", "policies"),
    ("drafters/cascade.py", "from specdec_t5x import tuning", "tuning"),
    ("data/tasks.py", "from specdec_t5x.demo.tasks import demo_ende", "demo"),
    ("api.py", "from t5x import partitioning", "t5x"),
    ("checkpoints/checkpoint.py", "from t5x import checkpoints", "t5x"),
    ("api.py", "from specdec_t5x.t5x_bridge import model", "t5x_bridge"),
    ("drafters/copy.py", "from specdec_t5x.build import DRAFTERS", "build"),
    ("decoding/decoders.py", "from specdec_t5x import t5x_bridge", "t5x_bridge"),
    ("bench/jobs.py", "from specdec_t5x.demo import recipe", "demo"),
    ("demo/corpora/news.py", "import specdec_t5x.doctor", "doctor"),
  ],
)
def test_a_planted_import_is_found(module, planted, found):
  assert module in MODULES
  source = (PACKAGE / module).read_text()
  assert forbidden(module, f"{source}\n{planted}\n") == {found}


# What a default decode stands on, networks and kernels apart: a draft model, the token
# rule (at temperature 0 the greedy one), and as many tokens as pay on the device.
BEGINNINGS = ("decoding.decoders", "drafters.draft_model", "decoding.cost_aware")
DEFAULT = {
  "core": "chain checks distributions greedy noise token tree types",
  "decoding": "baseline batching context cost_aware decoders drafter generate policy "
  "state step widths",
  "drafters": "draft_model stepwise",
  "tuning": "",
}


def test_a_default_decode_stands_on_no_other_module():
  found, pending = set(), [*BEGINNINGS, "core.token", "tuning"]
  while pending:
    path = PACKAGE / f"{pending.pop().replace('.', '/')}.py"
    if path in found or not path.exists() or path.parts[-2] in ("native", "network"):
      continue
    found |= {path}
    # What is imported within a function is not needed by all.
    at_once = [
      node for node in ast.parse(path.read_text()).body if not hasattr(node, "body")
    ]
    source = ast.unparse(ast.Module(at_once, []))
    pending += [name.removeprefix("specdec_t5x.") for name in imported(source)]
  names = {path.relative_to(PACKAGE).as_posix() for path in found}
  expected = {
    f"{part}/{name}.py" if name else f"{part}.py"
    for part, modules in DEFAULT.items()
    for name in modules.split() or [""]
  }
  assert names == expected


def test_each_part_has_its_rule():
  assert set(ALLOWED) == PARTS


def test_the_runtime_never_imports_the_package():
  for path in (ROOT / "t5x_runtime").rglob("*.py"):
    roots = {name.split(".")[0] for name in imported(path.read_text())}
    assert "specdec_t5x" not in roots, path
