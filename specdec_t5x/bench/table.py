"""A table as Markdown, CSV and JSON."""

import csv
import dataclasses
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from specdec_t5x.analysis.acceptance import Estimate
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.walltime import Spread
from specdec_t5x.tables import padded

NOT_MEASURED = "not measured"

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

  def show(self, value: Value) -> str:
    """Returns a value as text."""
    number = lambda x: f"{x:.{self.digits}f}"
    if isinstance(value, Estimate):
      if value.value is None:
        return "no data"
      if value.low is None:
        return number(value.value)
      return f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"
    if isinstance(value, Spread):
      return f"{number(value.median)} [{number(value.low)}, {number(value.high)}]"
    if value is None:
      return self.missing
    return number(value) if isinstance(value, float) else str(value)


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
    brief: which rows Markdown has; JSON and CSV have all.
  """

  name: str
  title: str
  columns: Sequence[Column]
  rows: Sequence[Mapping[str, Value]]
  notes: Sequence[str] = ()
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  before: Sequence["Table"] = ()
  brief: Callable[[Mapping[str, Value]], bool] = lambda row: True

  def markdown(self) -> str:
    """Returns the table with its title and notes, below those `before` it."""
    cells = [[column.header for column in self.columns]]
    rows = filter(self.brief, self.rows)
    cells += [[c.show(row.get(c.key)) for c in self.columns] for row in rows]
    head, *body = padded(cells)
    rule = ["-" * len(cell) for cell in head]
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
    notes = [f"- {note}" for note in self.notes]
    text = "\n".join([f"## {self.title}", "", *lines, "", *notes]).rstrip() + "\n"
    return "\n".join([*(table.markdown() for table in self.before), text])

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

  def document(self) -> dict[str, Any]:
    """Returns everything, for JSON."""
    return {
      "title": self.title,
      "settings": dict(self.settings),
      "environment": environment(),
      **_plain(self.facts),
      "rows": [_plain(row) for row in self.rows],
      "notes": list(self.notes),
    }

  def write(self, folder: str) -> list[str]:
    """Writes NAME.json, NAME.csv and NAME.md, and returns their paths."""
    directory = epath.Path(folder)
    directory.mkdir(parents=True, exist_ok=True)
    texts = {
      "json": json.dumps(self.document(), indent=1) + "\n",
      "csv": self.csv(),
      "md": self.markdown(),
    }
    for kind, text in texts.items():
      (directory / f"{self.name}.{kind}").write_text(text)
    return [str(directory / f"{self.name}.{kind}") for kind in texts]


def listed(facts: Mapping[str, Any]) -> str:
  """Returns facts in one line, for a note; those that are None are left out."""
  return ", ".join(f"{k} {v}" for k, v in facts.items() if v is not None)


def _flat(key, value):
  if not isinstance(value, Estimate | Spread):
    yield key, value
    return
  for name, number in dataclasses.asdict(value).items():
    yield (key if name in ("value", "median") else f"{key}_{name}"), number


def _plain(value):
  if isinstance(value, Mapping):
    return {key: _plain(each) for key, each in value.items()}
  known = isinstance(value, Estimate | Spread)
  return dataclasses.asdict(value) if known else value
