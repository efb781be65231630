r"""Measures all that pages show, and renders them.

  python -m specdec_t5x.bench results                     # goes on where it stopped
  python -m specdec_t5x.bench results --only machine base
  python -m specdec_t5x.bench results --data m30k=DIR     # and what needs that folder

The commands are in results.toml; those of `python -m lab` begin with `lab`. Each runs
in a process of its own, alone, and its table is kept as docs/results/data/NAME.json.
What was kept of the same command with this code on this machine is not measured again.
From the root of a clone, for hours.
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

from specdec_t5x.bench import report

# Measured first: what others were measured with is compared with this one.
_FIRST = "machine"
# Programs that several commands run are compiled once, but where a start is timed.
_COMPILED = "JAX_COMPILATION_CACHE_DIR"
_TIMES_STARTS = "infer"
_ENVIRONMENT = ("device", "cores", "jax", "jaxlib", "code")


def commands(
  plan: Mapping[str, str], given: Mapping[str, str]
) -> Iterator[tuple[str, list[str] | None]]:
  """Yields the tables' names and commands, None where a folder was not given.

  Args:
    plan: as `report.planned`.
    given: folders by the words that stand for them.
  """
  for name, command in plan.items():
    needed = set(re.findall(r"\{(\w+)\}", command))
    there = needed <= given.keys()
    yield name, shlex.split(command.format_map(given)) if there else None


def main(
  argv: Sequence[str],
  root: pathlib.Path = pathlib.Path(),
  plan: Mapping[str, str] | None = None,
) -> int:
  """Measures what was not kept, then writes the pages.

  Args:
    argv: the flags.
    root: of the repository.
    plan: what there is to measure; None is `report.planned`.

  Returns:
    The exit status: 1 where a command failed, or a page can't be rendered.
  """
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.bench results",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--only", nargs="+", default=[], help="tables; all")
  parser.add_argument(
    "--data", nargs="+", default=[], metavar="WORD=DIR", type=_pair, help="folders"
  )
  args = parser.parse_args(argv)
  found, failed = dict(commands(plan or report.planned(), dict(args.data))), []
  if unknown := set(args.only) - found.keys():
    print(f"error: --only: expected some of {[*found]}, got {sorted(unknown)}.")
    return 1
  for name, command in found.items():
    if args.only and name not in (_FIRST, *args.only):
      continue
    if command is None:
      print(f"{name}: left as it was kept; --data says where its folder is.")
    elif name != _FIRST and _is_kept(root, name, command):
      print(f"{name}: kept")
    elif not _measured(name, command, root):
      failed.append(name)
  if failed:
    print(f"Failed: {', '.join(failed)}. Run this again for these alone.")
  return report.main([], root) or int(bool(failed))


def _pair(text: str) -> tuple[str, ...]:
  found = re.fullmatch(r"(\w+)=(.+)", text)
  if not found:
    raise argparse.ArgumentTypeError(f"expected WORD=DIR, got {text!r}")
  return found.groups()


def _measured(name: str, command: Sequence[str], root: pathlib.Path) -> bool:
  """Runs a command; returns whether its table was kept."""
  print(f"{name}: measuring", flush=True)
  # One for all: the paper's tables share their cells.
  folder = root / "runs" / "results"
  folder.mkdir(parents=True, exist_ok=True)
  path, environment = folder / f"{name}.log", dict(os.environ)
  if command[0] != _TIMES_STARTS:
    environment[_COMPILED] = str((folder / "compiled").absolute())
  run = [sys.executable, "-m", *_module(command), "--output", str(folder)]
  with path.open("w", encoding="utf-8") as log:
    ran = subprocess.run(
      [*run, "--keep", name], cwd=root, env=environment, stdout=log, stderr=log
    )
  if ran.returncode:
    print(f"{name}: failed; {path} says why.")
  return ran.returncode == 0


def _module(command: Sequence[str]) -> list[str]:
  """Returns the arguments of `python -m` that run a command of results.toml."""
  return [*command] if command[0] == "lab" else ["specdec_t5x.bench", *command]


def _is_kept(root: pathlib.Path, name: str, command: Sequence[str]) -> bool:
  """Returns whether a table was kept of this command, as the machine's was."""
  try:
    kept, first = (
      json.loads((root / report.DATA / f"{each}.json").read_text(encoding="utf-8"))
      for each in (name, _FIRST)
    )
  except FileNotFoundError:
    return False
  same = all(kept["environment"][x] == first["environment"][x] for x in _ENVIRONMENT)
  begins = f"python -m {shlex.join(_module(command))} "
  return same and kept["command"].startswith(begins)
