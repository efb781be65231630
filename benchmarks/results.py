r"""Measures all tables of the pages, and renders the pages.

  python -m benchmarks results                     # continues a stopped run
  python -m benchmarks results --only machine base
  python -m benchmarks results --data m30k=DIR     # and tables of that folder

The commands are in results.toml; commands of `python -m lab` begin with `lab`. The
commands run one after the other, each in a separate process, and each table is kept as
docs/results/data/NAME.json. A kept table of the same command, code and machine is not
measured again. Run this in the root of a clone; it takes hours.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from benchmarks import report

# The first table. The environments of other tables are compared with its environment.
_FIRST = "machine"
# Commands share compiled programs, except for the command that times the start.
_COMPILED = "JAX_COMPILATION_CACHE_DIR"
_TIMES_STARTS = "infer"
_ENVIRONMENT = ("device", "cores", "jax", "jaxlib", "code")


def commands(
  plan: Mapping[str, str], given: Mapping[str, str]
) -> Iterator[tuple[str, list[str] | None]]:
  """Yields each table's name and command; the command is None if a folder is missing.

  Args:
    plan: as `report.planned`.
    given: folders by the words in braces.
  """
  for name, command in plan.items():
    needed = set(re.findall(r"\{(\w+)\}", command))
    is_complete = needed <= given.keys()
    yield name, shlex.split(command.format_map(given)) if is_complete else None


def main(
  argv: Sequence[str],
  root: pathlib.Path = pathlib.Path(),
  plan: Mapping[str, str] | None = None,
) -> int:
  """Measures the tables that were not kept, then writes the pages.

  Args:
    argv: the flags.
    root: the repository's root.
    plan: commands by table; None is `report.planned`.

  Returns:
    The exit status: 1 if a command failed, or if a page can't be rendered.
  """
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks results",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument(
    "--only", nargs="+", default=[], help="tables to measure (default: every table)"
  )
  parser.add_argument(
    "--data", nargs="+", default=[], metavar="WORD=DIR", type=_pair, help="data folders"
  )
  args = parser.parse_args(argv)
  by_table = dict(commands(plan or report.planned(), dict(args.data)))
  if unknown := set(args.only) - by_table.keys():
    print(f"error: --only: expected names among {[*by_table]}, got {sorted(unknown)}.")
    return 1
  failed = []
  for name, command in by_table.items():
    if args.only and name not in (_FIRST, *args.only):
      continue
    if command is None:
      print(
        f"{name}: not measured again. Give the data folder with --data to measure the "
        "table."
      )
    elif name != _FIRST and _is_kept(root, name, command):
      print(f"{name}: kept")
    elif not _measured(name, command, root):
      failed.append(name)
  if failed:
    print(
      f"Failed: {', '.join(failed)}. Run the command again to measure the failed "
      "tables."
    )
  return report.main([], root) or int(bool(failed))


def _pair(text: str) -> tuple[str, ...]:
  match = re.fullmatch(r"(\w+)=(.+)", text)
  if not match:
    raise argparse.ArgumentTypeError(f"expected WORD=DIR, got {text!r}")
  return match.groups()


def _measured(name: str, command: Sequence[str], root: pathlib.Path) -> bool:
  """Runs a command; returns whether the command's table was kept."""
  print(f"{name}: measuring", flush=True)
  # A common folder, because the paper's tables share cells.
  folder = root / "runs" / "results"
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f"{name}.log"
  environment = dict(os.environ)
  if command[0] != _TIMES_STARTS:
    environment[_COMPILED] = str((folder / "compiled").absolute())
  run = [sys.executable, "-m", *_module(command), "--output", str(folder)]
  with path.open("w", encoding="utf-8") as log:
    process = subprocess.run(
      [*run, "--keep", name], cwd=root, env=environment, stdout=log, stderr=log
    )
  if process.returncode:
    print(f"{name}: failed; see {path}.")
  return process.returncode == 0


def _module(command: Sequence[str]) -> list[str]:
  """Returns the arguments of `python -m` for a command of results.toml."""
  return [*command] if command[0] == "lab" else ["benchmarks", *command]


def _is_kept(root: pathlib.Path, name: str, command: Sequence[str]) -> bool:
  """Returns whether this command's table was kept, in the environment of `_FIRST`."""
  folder = root / report.DATA
  try:
    kept = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    first = json.loads((folder / f"{_FIRST}.json").read_text(encoding="utf-8"))
  except FileNotFoundError:
    return False
  same = all(kept["environment"][x] == first["environment"][x] for x in _ENVIRONMENT)
  begins = f"python -m {shlex.join(_module(command))} "
  return same and kept["command"].startswith(begins)
