"""A table as Markdown, CSV and JSON."""

import csv
import dataclasses
import functools
import io
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from etils import epath

from specdec_t5x.analysis.acceptance import Estimate
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.timed import Spread
from specdec_t5x.tables import padded

NOT_MEASURED = "not measured"
_COLUMN = re.compile(r"(\w+)(?::(\d))?(\?\S*)?(?: (.+))?")

# A number, one with an interval or quartiles, a word; None is what `Column.missing`
# says.
Value = float | int | str | Estimate | Spread | None


@dataclasses.dataclass(frozen=True)
class Column:
  """A column.

  Attributes:
    key: of its values in the rows.
    header: above it.
    digits: after the point.
    missing: shown where there is no value.
  """

  key: str
  header: str
  digits: int = 2
  missing: str = NOT_MEASURED

  def show(self, value: Value | Mapping[str, float | None]) -> str:
    """Returns a value, or what JSON has of it, as text."""
    value = plain(value)
    if value is None:
      return self.missing
    if isinstance(value, float):
      return f"{value:.{self.digits}f}"
    if not isinstance(value, Mapping):
      return str(value)
    middle, low, high = value.values()
    if middle is None:
      return "no data"
    ends = "" if low is None else f" [{low:.{self.digits}f}, {high:.{self.digits}f}]"
    return f"{middle:.{self.digits}f}{ends}"


def columns(text: str) -> tuple[Column, ...]:
  """Returns the columns that a text names, `|` between them.

  Each is a key, and as needed `:` with the digits, `?` with what is shown where there
  is no value, and the header: "gamma | speed:1 speed-up | siblings?- | c:3?- c, ms".
  """
  found = []
  for column in text.split("|"):
    key, digits, missing, header = _COLUMN.fullmatch(column.strip()).groups()
    missing = NOT_MEASURED if missing is None else missing[1:]
    found.append(Column(key, header or key, int(digits or 2), missing))
  return tuple(found)


@functools.cache
def declared(name: str, package: str = "specdec_t5x.bench") -> Mapping[str, Any]:
  """Returns the title, columns and notes of a table.

  Args:
    name: of the table in the package's tables.toml.
    package: the importable package that holds tables.toml.
  """
  file = resources.files(package) / "tables.toml"
  found = known = tomllib.loads(file.read_text(encoding="utf-8"))
  for part in name.split("."):
    found = found[part]
  # Several tables have these notes, by name.
  shared = known.get("notes", {})
  return {**found, "notes": [shared.get(n, n) for n in found.get("notes", ())]}


def grid(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a table in Markdown.

  Left out are rows that say that they are "hidden", and columns of which no row has a
  value, but for those of what should have been measured.
  """
  shown = [row for row in rows if not row.get("hidden")]
  there = {key for row in shown for key, value in row.items() if value is not None}
  columns = [c for c in columns if c.missing == NOT_MEASURED or c.key in there]
  cells = [[column.header for column in columns]]
  cells += [[c.show(row.get(c.key)) for c in columns] for row in shown]
  head, *body = padded(cells)
  rule = ["-" * len(cell) for cell in head]
  return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body)) + "\n"


@dataclasses.dataclass(frozen=True)
class Table:
  """What a command prints and writes.

  Attributes:
    name: of its files.
    title: above it.
    columns: of the table.
    rows: values by column; JSON has those without a column, too.
    notes: below it.
    settings: what it was made with, for JSON.
    facts: what else was found, for JSON.
    before: tables that Markdown shows above this one.
    made: versions, code, device and date, for JSON and below the notes.
    command: that made it, for JSON.
  """

  name: str
  title: str
  columns: Sequence[Column]
  rows: Sequence[Mapping[str, Value]]
  notes: Sequence[str] = ()
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  before: Sequence["Table"] = ()
  made: Mapping[str, Any] = dataclasses.field(default_factory=environment)
  command: str = ""

  def markdown(self) -> str:
    """Returns the table with its title and notes, below those `before` it."""
    parts = [
      f"## {each.title}\n\n{grid(each.columns, each.rows)}"
      for each in (*self.before, self)
    ]
    notes = "\n".join(f"- {note}" for note in (*self.notes, listed(self.made)))
    return "\n".join([*parts, f"{notes}\n"])

  def csv(self) -> str:
    """Returns the rows; a value with an interval has columns for its ends."""
    rows = [
      {k: v for c in self.columns for k, v in _flat(c.key, row.get(c.key))}
      for row in self.rows
    ]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

  def json(self) -> str:
    """Returns everything; of the tables before it the rows, by their names."""
    document = {
      "title": self.title,
      "command": self.command,
      "settings": self.settings,
      "environment": self.made,
      **{table.name: table.rows for table in self.before},
      **self.facts,
      "columns": [dataclasses.astuple(column) for column in self.columns],
      "rows": self.rows,
      "notes": self.notes,
    }
    return json.dumps(plain(document), indent=1) + "\n"

  def write(self, folder: str) -> list[str]:
    """Writes NAME.json, NAME.csv and NAME.md, and returns their paths."""
    texts = {"json": self.json(), "csv": self.csv(), "md": self.markdown()}
    return [put(folder, f"{self.name}.{kind}", text) for kind, text in texts.items()]


def render(
  name: str,
  rows: Sequence[Mapping[str, Value]],
  words: Mapping[str, Any] | None = None,
  more: str = "",
  notes: Sequence[str] = (),
  *,
  package: str = "specdec_t5x.bench",
  **fields: Any,
) -> Table:
  """Returns the table of some rows; title, columns and notes are in tables.toml.

  Args:
    name: there, its last part in the table.
    rows: values by column.
    words: what is filled in there.
    more: columns beside those there.
    notes: below those there.
    package: the package whose tables.toml it is.
    **fields: other fields of the table.
  """
  spec, words = declared(name, package), words or {}
  title, shown = spec["title"].format(**words), columns(spec["columns"] + more)
  notes = (*(note.format(**words) for note in spec["notes"]), *notes)
  return Table(name.rpartition(".")[2], title, shown, rows, notes, **fields)


def put(folder: str, name: str, text: str) -> str:
  """Writes a text into a folder, which is made where it is missing; its path."""
  directory = epath.Path(folder)
  directory.mkdir(parents=True, exist_ok=True)
  (directory / name).write_text(text)
  return str(directory / name)


def listed(facts: Mapping[str, Any]) -> str:
  """Returns facts in one line, for a note; those that are None are left out."""
  return ", ".join(f"{k} {v}" for k, v in facts.items() if v is not None)


def plain(value: Any) -> Any:
  """Returns a value as JSON has it."""
  if isinstance(value, Estimate | Spread):
    return dataclasses.asdict(value)
  if isinstance(value, Mapping):
    return {key: plain(each) for key, each in value.items()}
  return list(map(plain, value)) if isinstance(value, list | tuple) else value


def _flat(key, value):
  found = plain(value)
  if not isinstance(found, Mapping):
    yield key, found
    return
  for name, number in found.items():
    yield (key if name in ("value", "median") else f"{key}_{name}"), number
