r"""Measures the tables of pages, and renders the pages from the kept JSON.

  python -m benchmarks report                      # writes the pages
  python -m benchmarks report --check              # writes nothing; 1 if a page differs
  python -m benchmarks results                     # measures; continues a stopped run
  python -m benchmarks results --only machine base
  python -m benchmarks results --data m30k=DIR     # and tables of that folder

A page has a table between the lines `<!-- table NAME -->` and `<!-- end -->`. The entry
[pages.NAME] in tables.toml selects columns and rows from the JSON of a kept table in
docs/results/data. Without an entry the page shows all of NAME.json.

`results` runs the commands of results.toml in separate processes, one after the other,
and keeps each table. A kept table of the same command, code and machine is not measured
again. Run this in the root of a clone; all tables take hours.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from benchmarks.environment import MACHINE
from benchmarks.table import Column, grid, tables

DATA = "docs/results/data"
PAGES = ("README.md", "docs/tpu.md", "docs/results/*.md", "docs/methods/*.md")
_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FIRST = "machine"  # Kept tables count if they have this table's environment.
_FOLDER = re.compile(r"\{(\w+)\}")


# ---- Rendering ----


def rendered(page: str, root: pathlib.Path) -> str:
  """Returns a page with all tables rendered from the kept JSON.

  Raises a ValueError if a marker has no end, or no JSON was kept for a marker.
  """
  begun = page.count("<!-- table ")
  ended = len(_MARKED.findall(page))
  if begun != ended:
    raise ValueError(
      f"A page begins {begun} tables and ends {ended}. Write <!-- end --> on its own "
      "line below every <!-- table NAME -->, and queries in benchmarks/tables.toml."
    )
  return _MARKED.sub(lambda match: _table(root, *match.groups()), page)


def differing(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
  """Yields the pages that differ from the rendered text, with the rendered text."""
  for path in (path for pattern in PAGES for path in sorted(root.glob(pattern))):
    page = path.read_text(encoding="utf-8")
    if (text := rendered(page, root)) != page:
      yield path, text


def main(argv: Sequence[str], root: pathlib.Path = pathlib.Path()) -> int:
  """Writes the pages, or compares them.

  Returns the exit status: 1 if --check finds pages that differ, or a table is missing.
  """
  parser = _parser("report")
  parser.add_argument("--check", action="store_true", help="compare without writing")
  args = parser.parse_args(argv)
  try:
    pages = list(differing(root))
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  for path, text in pages:
    print(f"{path}: {'differs from the kept tables' if args.check else 'rendered'}")
    if not args.check:
      path.write_text(text, encoding="utf-8")
  return int(args.check and bool(pages))


def _selected(name, kept, query) -> tuple[list[Column], list[dict]]:
  """Returns the columns and rows of a kept table that a table on a page shows."""
  by_key = {fields[0]: Column(*fields) for fields in kept["columns"]}
  columns = query.get("columns", [*by_key])
  where = query.get("where", {})
  if unknown := {*columns, *where} - by_key.keys():
    raise ValueError(
      f"[pages.{name}] in tables.toml has the columns {sorted(unknown)}, expected "
      f"names among {[*by_key]}."
    )
  rows = [
    row
    for row in kept["rows"]
    if all(by_key[key].show(row.get(key)) in values for key, values in where.items())
  ]
  if not rows:
    raise ValueError(f"[pages.{name}] in tables.toml selects no row. Correct `where`.")
  return [by_key[key] for key in columns], rows


def _table(root, begin, name, end) -> str:
  """Returns a table between the markers, with the measurement's environment."""
  query = tables("benchmarks")["pages"].get(name, {})
  source = query.get("kept", name)
  path = root / DATA / f"{source}.json"
  if not path.is_file():
    raise ValueError(
      f"A page has <!-- table {name} -->, but {path} does not exist. Make the file "
      f"with the table's command and --keep {source}."
    )
  kept = json.loads(path.read_text(encoding="utf-8"))
  text = grid(*_selected(name, kept, query))
  where = "{device}, {cores} cores, {date}, code {code}".format_map(kept["environment"])
  command = kept["command"]
  if planned := _planned().get(source):  # The short command of `results`.
    command = f"python -m benchmarks results --only {source}"
    for word in dict.fromkeys(_FOLDER.findall(planned)):
      command += f" --data {word}=DIR"
  return f"{begin}\n{text}\n{where}: `{command}`\n\n{end}"


# ---- Measuring ----


def measure(
  argv: Sequence[str],
  root: pathlib.Path = pathlib.Path(),
  plan: Mapping[str, str] | None = None,
) -> int:
  """Measures the tables of a plan that were not kept, then writes the pages.

  Returns the exit status: 1 if a command failed, or a page can't be rendered.
  """
  parser = _parser("results")
  parser.add_argument("--only", nargs="+", default=[], help="tables (default: all)")
  about = "data folders"
  parser.add_argument("--data", nargs="+", default=[], metavar="WORD=DIR", help=about)
  args = parser.parse_args(argv)
  if wrong := [text for text in args.data if not re.fullmatch(r"\w+=.+", text)]:
    parser.error(f"--data: expected WORD=DIR, got {wrong[0]!r}")
  by_table = commands(dict(text.split("=", 1) for text in args.data), plan)
  if unknown := set(args.only) - by_table.keys():
    print(f"error: --only: expected names among {[*by_table]}, got {sorted(unknown)}.")
    return 1
  failed = []
  for name, command in by_table.items():
    if args.only and name not in (_FIRST, *args.only):
      continue
    if command is None:
      print(f"{name}: not measured again. Give the table's data folder with --data.")
    elif name != _FIRST and is_kept(root, name, command):
      print(f"{name}: kept")
    elif not _is_measured(name, command, root):
      failed.append(name)
  if failed:
    names = ", ".join(failed)
    print(f"Failed: {names}. Run the command again to measure the failed tables.")
  return main([], root) or int(bool(failed))


def commands(
  given: Mapping[str, str], plan: Mapping[str, str] | None = None
) -> dict[str, list[str] | None]:
  """Returns each table's arguments of `python -m`; None without a folder in `given`."""
  found = {}
  for name, command in (plan or _planned()).items():
    found[name] = None
    if set(_FOLDER.findall(command)) <= given.keys():
      words = shlex.split(command.format_map(given))
      found[name] = words if words[0] == "lab" else ["benchmarks", *words]
  return found


def is_kept(root: pathlib.Path, name: str, command: Sequence[str]) -> bool:
  """Returns whether this command's table was kept, in the environment of `_FIRST`."""
  paths = [root / DATA / f"{table}.json" for table in (name, _FIRST)]
  if not all(path.is_file() for path in paths):
    return False
  kept, first = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
  same = all(kept["environment"][x] == first["environment"][x] for x in MACHINE)
  return same and kept["command"].startswith(f"python -m {shlex.join(command)} ")


def _is_measured(name: str, command: Sequence[str], root: pathlib.Path) -> bool:
  """Runs a command; returns whether the command's table was kept."""
  print(f"{name}: measuring", flush=True)
  # A common folder, because the paper's tables share cells.
  folder = root / "runs" / "results"
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / f"{name}.log"
  environment = dict(os.environ)
  if "infer" not in command:  # `infer` times the start, so it compiles its programs.
    compiled = str((folder / "compiled").absolute())
    environment["JAX_COMPILATION_CACHE_DIR"] = compiled
  run = [sys.executable, "-m", *command, "--output", str(folder), "--keep", name]
  with path.open("w", encoding="utf-8") as log:
    process = subprocess.run(run, cwd=root, env=environment, stdout=log, stderr=log)
  if process.returncode:
    print(f"{name}: failed; see {path}.")
  return process.returncode == 0


def _planned() -> dict[str, str]:
  """Returns the commands of results.toml, by table."""
  text = (resources.files("benchmarks") / "results.toml").read_text("utf-8")
  plan = tomllib.loads(text)
  for word, meaning in plan.pop("words").items():
    plan = {name: x.replace(f"{{{word}}}", meaning) for name, x in plan.items()}
  return plan


def _parser(name: str) -> argparse.ArgumentParser:
  return argparse.ArgumentParser(
    prog=f"python -m benchmarks {name}",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
