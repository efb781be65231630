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
from specdec_t5x.bench.timed import Spread
from specdec_t5x.environment import environment
from specdec_t5x.tables import padded

NOT_MEASURED = "not measured"
_COLUMN = re.compile(r"(\w+)(?::(\d))?(\?\S*)?(?: (.+))?")

# A number, an estimate with an interval, a median with quartiles, or a word. None is
# shown as `Column.missing`.
Value = float | int | str | Estimate | Spread | None


@dataclasses.dataclass(frozen=True)
class Column:
  """A column.

  Attributes:
    key: the key of the values in the rows.
    header: the header.
    digits: the number of digits after the point.
    missing: the text for a missing value.
  """

  key: str
  header: str
  digits: int = 2
  missing: str = NOT_MEASURED

  def show(self, value: Value | Mapping[str, float | None]) -> str:
    """Returns a value, or a value read from JSON, as text."""
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
  """Returns the columns of a text, which are separated by `|`.

  A column is a key, and as needed `:` with the digits, `?` with the text for a missing
  value, and the header: "gamma | speed:1 speed-up | siblings?- | c:3?- c, ms".
  """
  parsed = []
  for column in text.split("|"):
    key, digits, missing, header = _COLUMN.fullmatch(column.strip()).groups()
    missing = NOT_MEASURED if missing is None else missing[1:]
    parsed.append(Column(key, header or key, int(digits or 2), missing))
  return tuple(parsed)


@functools.cache
def declared(name: str, package: str = "specdec_t5x.bench") -> Mapping[str, Any]:
  """Returns the title, columns and notes of a table.

  Args:
    name: the table's name in the package's tables.toml.
    package: the importable package that holds tables.toml.
  """
  file = resources.files(package) / "tables.toml"
  document = tomllib.loads(file.read_text(encoding="utf-8"))
  table = document
  for part in name.split("."):
    table = table[part]
  # Notes that several tables have, by name.
  shared = document.get("notes", {})
  return {**table, "notes": [shared.get(n, n) for n in table.get("notes", ())]}


def grid(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a table in Markdown.

  Rows with a true value of "hidden" are left out, and so are columns without any value,
  except for columns with missing values shown as `NOT_MEASURED`.
  """
  shown = [row for row in rows if not row.get("hidden")]
  present = {key for row in shown for key, value in row.items() if value is not None}
  columns = [c for c in columns if c.missing == NOT_MEASURED or c.key in present]
  cells = [[column.header for column in columns]]
  cells += [[c.show(row.get(c.key)) for c in columns] for row in shown]
  head, *body = padded(cells)
  rule = ["-" * len(cell) for cell in head]
  return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body)) + "\n"


@dataclasses.dataclass(frozen=True)
class Table:
  """The result of a command.

  Attributes:
    name: the name of the files.
    title: the title above the table.
    columns: the columns.
    rows: values by column; JSON also has values without a column.
    notes: notes below the table.
    settings: settings of the command, for JSON.
    facts: further results, for JSON.
    before: tables that Markdown shows above this table.
    made: versions, code, device and date, for JSON and below the notes.
    command: the command line, for JSON.
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
    """Returns the tables of `before`, then this table, each with a title; and notes."""
    parts = [
      f"## {table.title}\n\n{grid(table.columns, table.rows)}"
      for table in (*self.before, self)
    ]
    notes = "\n".join(f"- {note}" for note in (*self.notes, listed(self.made)))
    return "\n".join([*parts, f"{notes}\n"])

  def csv(self) -> str:
    """Returns the rows as CSV; the ends of an interval have separate columns."""
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
    """Returns the table as JSON, with the rows of each table of `before` by name."""
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
    """Writes NAME.json, NAME.csv and NAME.md, and returns the paths."""
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
  """Returns a table of rows, with title, columns and notes from tables.toml.

  Args:
    name: the name in tables.toml. The last part is the table's name.
    rows: values by column.
    words: values for the names in braces in tables.toml.
    more: further columns.
    notes: further notes.
    package: the package with the tables.toml.
    **fields: other fields of the table.
  """
  spec = declared(name, package)
  words = words or {}
  title = spec["title"].format(**words)
  shown = columns(spec["columns"] + more)
  notes = (*(note.format(**words) for note in spec["notes"]), *notes)
  return Table(name.rpartition(".")[2], title, shown, rows, notes, **fields)


def put(folder: str, name: str, text: str) -> str:
  """Writes a text into a folder, creates a missing folder, and returns the path."""
  directory = epath.Path(folder)
  directory.mkdir(parents=True, exist_ok=True)
  (directory / name).write_text(text)
  return str(directory / name)


def listed(facts: Mapping[str, Any]) -> str:
  """Returns facts in one line, for a note, without facts that are None."""
  return ", ".join(f"{k} {v}" for k, v in facts.items() if v is not None)


def plain(value: Any) -> Any:
  """Returns a value as a JSON value."""
  if isinstance(value, Estimate | Spread):
    return dataclasses.asdict(value)
  if isinstance(value, Mapping):
    return {key: plain(item) for key, item in value.items()}
  return list(map(plain, value)) if isinstance(value, list | tuple) else value


def _flat(key, value):
  value = plain(value)
  if not isinstance(value, Mapping):
    yield key, value
    return
  for name, number in value.items():
    yield (key if name in ("value", "median") else f"{key}_{name}"), number
