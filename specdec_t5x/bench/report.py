r"""Renders the tables of pages from the JSON that commands kept (--keep NAME).

  python -m specdec_t5x.bench report          # writes the pages
  python -m specdec_t5x.bench report --check  # writes nothing; 1 where a page differs

Between the lines `<!-- table NAME -->` and `<!-- end -->` of README.md, docs/results
and docs/methods stands the table of docs/results/data/NAME.json, below it what it was
measured with. From the repository's root.
"""

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Iterator, Sequence

from specdec_t5x.bench.table import Column, grid

DATA = "docs/results/data"
PAGES = ("README.md", "docs/results/*.md", "docs/methods/*.md")
_MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(page: str, root: pathlib.Path) -> str:
  """Returns a page with its tables as the kept JSON has them.

  Raises:
    ValueError: where a marker has no end, or names a table that was not kept.
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


def _table(root, begin, name, end):
  path = root / DATA / f"{name}.json"
  if not path.is_file():
    raise ValueError(
      f"A page has <!-- table {name} -->, but {path} is not there. Make it with the "
      f"table's command and --keep {name}."
    )
  kept = json.loads(path.read_text(encoding="utf-8"))
  text = grid([Column(*column) for column in kept["columns"]], kept["rows"])
  made = kept["environment"]
  where = f"{made['device']}, {made['date']}, code {made['code']}"
  return f"{begin}\n{text}\n{where}: `{kept['command']}`\n\n{end}"
