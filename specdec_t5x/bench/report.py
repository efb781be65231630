r"""Renders the tables of pages from the JSON that commands kept (--keep NAME).

  python -m specdec_t5x.bench report          # writes the pages
  python -m specdec_t5x.bench report --check  # writes nothing; 1 where a page differs

Between the lines `<!-- table NAME -->` and `<!-- end -->` of README.md, docs/results
and docs/methods stands the table of docs/results/data/NAME.json, below it what it was
measured with. `<!-- table NAME draft speed temperature=0 "shape=chain|tree of 8" -->`
shows two of its columns, and the rows that show these values. From the repository's
root.
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

from specdec_t5x.bench.table import Column, grid

DATA = "docs/results/data"
PAGES = ("README.md", "docs/results/*.md", "docs/methods/*.md")
_MARKED = re.compile(r"(<!-- table (\w+)(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def planned() -> dict[str, str]:
  """Returns the commands by the names of their tables, as results.toml has them."""
  text = (resources.files("specdec_t5x.bench") / "results.toml").read_text("utf-8")
  plan = tomllib.loads(text)
  for word, meaning in plan.pop("words").items():
    plan = {name: each.replace(f"{{{word}}}", meaning) for name, each in plan.items()}
  return plan


def rendered(page: str, root: pathlib.Path) -> str:
  """Returns a page with its tables as the kept JSON has them.

  Raises:
    ValueError: where a marker has no end, or names what was not kept.
  """
  begun, whole = page.count("<!-- table "), len(_MARKED.findall(page))
  if begun != whole:
    raise ValueError(
      f"A page begins {begun} tables and ends {whole} of them. Write <!-- end --> "
      "below each <!-- table NAME -->, a line each."
    )
  return _MARKED.sub(lambda found: _table(root, *found.groups()), page)


def differing(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, str]]:
  """Yields the pages that are not as they should be, with what they should be."""
  for path in (path for pattern in PAGES for path in sorted(root.glob(pattern))):
    page = path.read_text(encoding="utf-8")
    if (should := rendered(page, root)) != page:
      yield path, should


def main(argv: Sequence[str], root: pathlib.Path = pathlib.Path()) -> int:
  """Writes the pages, or compares them.

  Returns:
    The exit status: 1 where --check finds pages that differ, or a table is missing.
  """
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.bench report",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument("--check", action="store_true", help="write nothing: compare")
  args = parser.parse_args(argv)
  try:
    found = list(differing(root))
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  for path, text in found:
    print(f"{path}: {'not as its tables are kept' if args.check else 'rendered'}")
    if not args.check:
      path.write_text(text, encoding="utf-8")
  return int(args.check and bool(found))


def _table(root, begin, name, words, end) -> str:
  """Returns a table between its markers, with the command that makes it."""
  path = root / DATA / f"{name}.json"
  if not path.is_file():
    raise ValueError(
      f"A page has <!-- table {name} -->, but {path} is not there. Make it with the "
      f"table's command and --keep {name}."
    )
  kept = json.loads(path.read_text(encoding="utf-8"))
  text = grid(*_chosen(name, kept, shlex.split(words)))
  where = "{device}, {cores} cores, {date}, code {code}".format_map(kept["environment"])
  command, plan = kept["command"], planned()
  if name in plan:  # Its own command is long.
    folders = dict.fromkeys(re.findall(r"\{(\w+)\}", plan[name]))
    data = "".join(f" --data {word}=DIR" for word in folders)
    command = f"python -m specdec_t5x.bench results --only {name}{data}"
  return f"{begin}\n{text}\n{where}: `{command}`\n\n{end}"


def _chosen(name, kept, words) -> tuple[list[Column], list[dict]]:
  """Returns the columns and rows that a marker's words choose; without words, all."""
  by_key = {key: Column(key, *rest) for key, *rest in kept["columns"]}
  conditions = dict(word.split("=", 1) for word in words if "=" in word)
  chosen = [word for word in words if "=" not in word]
  if unknown := {*chosen, *conditions} - by_key.keys():
    raise ValueError(
      f"A page's <!-- table {name} .. --> names the columns {sorted(unknown)}, "
      f"expected some of {[*by_key]}."
    )
  rows = kept["rows"]
  for key, values in conditions.items():
    column = by_key[key]
    rows = [row for row in rows if column.show(row.get(key)) in values.split("|")]
  if not rows:
    raise ValueError(f"A page's <!-- table {name} .. --> chooses no row.")
  return [by_key[key] for key in chosen or by_key], rows
