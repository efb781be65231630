"""A table as Markdown and JSON; tables.toml has the columns and texts."""

import dataclasses
import functools
import json
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from etils import epath

from benchmarks.environment import environment
from benchmarks.timed import Spread
from specdec_t5x.core.theory import Estimate

NOT_MEASURED = "not measured"

# A number, an estimate with an interval, a median with quartiles, or a word. None is
# shown as `Column.missing`.
Value = float | int | str | Estimate | Spread | None


@dataclasses.dataclass(frozen=True)
class Column:
  """A column."""

  key: str  # The key of the values in the rows.
  header: str = ""  # The key if empty.
  digits: int = 2  # The number of digits after the point.
  missing: str = NOT_MEASURED  # The text for a missing value.

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


@functools.cache
def tables(package: str) -> Mapping[str, Any]:
  """Returns the contents of a package's tables.toml."""
  file = resources.files(package) / "tables.toml"
  return tomllib.loads(file.read_text(encoding="utf-8"))


def declared(name: str, package: str = "benchmarks") -> dict[str, Any]:
  """Returns the entry of a table in a package's tables.toml, with columns and notes."""
  entry = tables(package)
  for part in name.split("."):
    entry = entry[part]
  columns = [Column(c) if isinstance(c, str) else Column(**c) for c in entry["columns"]]
  # Notes that several tables have, by name.
  shared = tables(package).get("notes", {})
  notes = [shared.get(note, note) for note in entry.get("notes", ())]
  return {**entry, "columns": columns, "notes": notes}


def grid(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
  """Returns a table in Markdown.

  Rows with a true value of "hidden" are left out, and so are columns without any value,
  except for columns with missing values shown as `NOT_MEASURED`.
  """
  shown = [row for row in rows if not row.get("hidden")]
  present = {key for row in shown for key, value in row.items() if value is not None}
  columns = [c for c in columns if c.missing == NOT_MEASURED or c.key in present]
  cells = [[column.header or column.key for column in columns]]
  cells += [[c.show(row.get(c.key)) for c in columns] for row in shown]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  head, *body = (list(map(str.ljust, row, widths)) for row in cells)
  rule = ["-" * len(cell) for cell in head]
  return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *body)) + "\n"


@dataclasses.dataclass(frozen=True)
class Table:
  """The result of a command."""

  name: str  # The name of the files.
  title: str  # The title above the table.
  columns: Sequence[Column]
  # Values by column. JSON also has values without a column.
  rows: Sequence[Mapping[str, Value]]
  notes: Sequence[str] = ()  # Below the table.
  # For JSON: the settings of the command, and further results.
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  before: Sequence["Table"] = ()  # Markdown shows these tables above this table.
  # Versions, code, device and date, for JSON and below the notes.
  made: Mapping[str, Any] = dataclasses.field(default_factory=environment)
  command: str = ""  # The command line, for JSON.

  def markdown(self) -> str:
    """Returns the tables of `before`, then this table, each with a title; and notes."""
    parts = [
      f"## {table.title}\n\n{grid(table.columns, table.rows)}"
      for table in (*self.before, self)
    ]
    notes = "\n".join(f"- {note}" for note in (*self.notes, listed(self.made)))
    return "\n".join([*parts, f"{notes}\n"])

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
    """Writes NAME.json and NAME.md, and returns the paths."""
    texts = {"json": self.json(), "md": self.markdown()}
    return [put(folder, f"{self.name}.{kind}", text) for kind, text in texts.items()]


def render(
  name: str,
  rows: Sequence[Mapping[str, Value]],
  words: Mapping[str, Any] | None = None,
  more: Sequence[Column] = (),
  notes: Sequence[str] = (),
  *,
  package: str = "benchmarks",
  **fields: Any,
) -> Table:
  """Returns a table of rows, with title, columns and notes from a tables.toml.

  The last part of the entry's name is the table's name. `words` has values for the
  names in braces; `more` and `notes` follow the columns and notes of the entry.
  """
  entry = declared(name, package)
  words = words or {}
  notes = (*(note.format(**words) for note in entry["notes"]), *notes)
  title = entry["title"].format(**words)
  columns = (*entry["columns"], *more)
  return Table(name.rpartition(".")[2], title, columns, rows, notes, **fields)


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
