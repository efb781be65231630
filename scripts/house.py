"""Measures the size of the code: lines, the default decode, imports, gin macros.

python scripts/house.py
"""

import ast
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "specdec_t5x"
# Networks and kernels are no part of the loop.
_KERNELS = ("native", "cuda", "network")
_LIST_MODULES = """
import sys
import specdec_t5x.decoding.generate
names = (m.__file__ for n, m in sys.modules.items() if n.startswith("specdec_t5x"))
print("\\n".join(name for name in names if name))
"""


def lines_of(paths: Iterable[pathlib.Path]) -> int:
  """Returns the number of lines of some files."""
  return sum(len(path.read_text().splitlines()) for path in paths)


def python_files(*folders: str) -> list[pathlib.Path]:
  """Returns the Python files of folders of the repository."""
  found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
  return [path for path in found if "build" not in path.relative_to(ROOT).parts]


def imported(source: str) -> Iterator[str]:
  """Yields the names of imported modules, and of the imported objects in modules."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "a relative import"
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def default_modules() -> set[pathlib.Path]:
  """Returns the modules that a default decode imports at once, from `beginnings` on."""
  rules = tomllib.loads((ROOT / "tests" / "imports.toml").read_text())
  found, pending = set(), list(rules["beginnings"])
  while pending:
    path = PACKAGE / f"{pending.pop().replace('.', '/')}.py"
    if path in found or not path.exists() or path.parts[-2] in _KERNELS:
      continue
    found.add(path)
    # Imports within functions are not needed by every decode.
    body = ast.parse(path.read_text()).body
    at_once = [node for node in body if not hasattr(node, "body")]
    source = ast.unparse(ast.Module(at_once, []))
    pending += [name.removeprefix("specdec_t5x.") for name in imported(source)]
  return found


def modules_of_generate() -> list[pathlib.Path]:
  """Returns the modules of the package that importing decoding.generate loads."""
  command = [sys.executable, "-c", _LIST_MODULES]
  done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
  return [pathlib.Path(line) for line in done.stdout.split()]


def macros() -> set[str]:
  """Returns the macros that gin files define, but for training's and contrib's."""
  configs = ROOT / "configs"
  files = (
    path
    for path in configs.rglob("*.gin")
    if path.relative_to(configs).parts[0] not in ("train", "contrib")
  )
  pattern = re.compile(r"^([A-Z][A-Z0-9_]*) =", re.M)
  return {name for path in files for name in pattern.findall(path.read_text())}


def _long_files() -> int:
  files = python_files("specdec_t5x", "t5x_runtime", "lab", "tests", "scripts")
  return sum(lines_of([path]) > 600 for path in files)


def rows() -> list[tuple[str, int]]:
  """Returns the names of the measures, and the numbers."""
  default, loaded = default_modules(), modules_of_generate()
  library = python_files("specdec_t5x", "t5x_runtime")
  tests = set(python_files("tests")) - set(python_files("tests/lab"))
  return [
    ("library and runtime, lines", lines_of(library)),
    ("of these contrib, lines", lines_of(python_files("specdec_t5x/contrib"))),
    ("lab, lines", lines_of(python_files("lab"))),
    ("tests without lab's, lines", lines_of(tests)),
    ("modules of a default decode", len(default)),
    ("lines of a default decode", lines_of(default)),
    ("lines that decoding.generate loads", lines_of(loaded)),
    ("gin macros without train/ and contrib/", len(macros())),
    ("files of more than 600 lines", _long_files()),
    ("lines of README.md", lines_of([ROOT / "README.md"])),
  ]


def main() -> int:
  """Prints the table."""
  print("| | |\n|---|---|")
  for name, value in rows():
    print(f"| {name} | {value:,} |")
  return 0


if __name__ == "__main__":
  sys.exit(main())
