r"""Renders the tables of pages from the JSON that commands kept (--keep NAME).

  python -m benchmarks report          # writes the pages
  python -m benchmarks report --check  # writes nothing; 1 where a page differs

The lines `<!-- table NAME -->` and `<!-- end -->` in README.md, docs/results and
docs/methods enclose the table of docs/results/data/NAME.json, with the measurement's
environment below the table. Words after the name select columns and rows, as in
`<!-- table NAME draft speed temperature=0 "shape=chain|tree of 8" -->`. Run this in the
repository's root.
"""

import argparse
import json
import pathlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib import resources

from benchmarks.table import Column, grid

DATA = "docs/results/data"
PAGES = ("README.md", "docs/results/*.md", "docs/methods/*.md")
_MARKED = re.compile(r"(<!-- table (\w+)(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def planned() -> dict[str, str]:
  """Returns the commands of results.toml, by table."""
  text = (resources.files("benchmarks") / "results.toml").read_text("utf-8")
  plan = tomllib.loads(text)
  for word, meaning in plan.pop("words").items():
    for name, command in plan.items():
      plan[name] = command.replace(f"{{{word}}}", meaning)
  return plan


def rendered(page: str, root: pathlib.Path) -> str:
  """Returns a page with all tables rendered from the kept JSON.

  Raises:
    ValueError: if a marker has no end, or no JSON was kept for a marker.
  """
  begun = page.count("<!-- table ")
  ended = len(_MARKED.findall(page))
  if begun != ended:
    raise ValueError(
      f"A page begins {begun} tables and ends {ended}. Write <!-- end --> on its own "
      "line below every <!-- table NAME -->."
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

  Returns:
    The exit status: 1 if --check finds pages that differ, or if a table is missing.
  """
  parser = argparse.ArgumentParser(
    prog="python -m benchmarks report",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
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


def _table(root, begin, name, words, end) -> str:
  """Returns a table between the markers, with the table's command."""
  path = root / DATA / f"{name}.json"
  if not path.is_file():
    raise ValueError(
      f"A page has <!-- table {name} -->, but {path} does not exist. Make the file "
      f"with the table's command and --keep {name}."
    )
  kept = json.loads(path.read_text(encoding="utf-8"))
  text = grid(*_chosen(name, kept, shlex.split(words)))
  where = "{device}, {cores} cores, {date}, code {code}".format_map(kept["environment"])
  command = kept["command"]
  plan = planned()
  if name in plan:  # The page shows the short command of `benchmarks results`.
    folders = dict.fromkeys(re.findall(r"\{(\w+)\}", plan[name]))
    data = "".join(f" --data {word}=DIR" for word in folders)
    command = f"python -m benchmarks results --only {name}{data}"
  return f"{begin}\n{text}\n{where}: `{command}`\n\n{end}"


def _chosen(name, kept, words) -> tuple[list[Column], list[dict]]:
  """Returns the columns and rows that a marker's words choose; all without words."""
  by_key = {fields[0]: Column(*fields) for fields in kept["columns"]}
  conditions = dict(word.split("=", 1) for word in words if "=" in word)
  chosen = [word for word in words if "=" not in word]
  if unknown := {*chosen, *conditions} - by_key.keys():
    raise ValueError(
      f"A page's <!-- table {name} .. --> names the columns {sorted(unknown)}, "
      f"expected names among {[*by_key]}."
    )
  rows = kept["rows"]
  for key, values in conditions.items():
    column = by_key[key]
    rows = [row for row in rows if column.show(row.get(key)) in values.split("|")]
  if not rows:
    raise ValueError(
      f"A page's <!-- table {name} .. --> selects no row. Correct the selection."
    )
  return [by_key[key] for key in chosen or by_key], rows
