"""The common part of the commands: flags, tables and error messages."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import plotting, report
from benchmarks.table import Table, put
from specdec_t5x.platforms import check_platform

# Writes further files of a table with the given flags, and returns the paths.
WriteFn = Callable[[Table, argparse.Namespace], Sequence[str]]
# Flags by attribute name. A flag is a default, or a type if there is no default, or a
# list of either for several values. A flag with further properties is a tuple: the
# default or type, the help text, and as needed the choices, `REQUIRED`, or a mapping of
# further arguments of argparse.
Flags = Mapping[str, Any]
REQUIRED = object()
# The help texts of flags that several commands have.
_ABOUT = {
  "temperature": "sampling temperature; 0 is greedy",
  "temperatures": "sampling temperature; 0 is greedy",
  "gamma": "drafted tokens per call",
  "batch": "batch size",
  "seed": "seed of the sampling",
  "max_length": "maximum number of output tokens",
  "recorded": "show the measured cells of --output, without measuring the rest",
  "chart": "also draw a figure; needs matplotlib",
}


def add_flags(parser: argparse._ActionsContainer, flags: Flags) -> None:
  """Adds flags to a parser."""
  for name, flag in flags.items():
    default, about, *others = flag if isinstance(flag, tuple) else (flag, "")
    about = about or _ABOUT.get(name, "")
    first = default[0] if isinstance(default, list) else default
    if default is False:
      options = {"action": "store_true", "help": about}
    elif isinstance(first, type):
      options = {"type": first, "help": about}
    else:
      about = f"{about} (%(default)s)".strip()
      options = {"type": type(first), "default": default, "help": about}
    if isinstance(default, list):
      options["nargs"] = "+"
    for other in others:
      if other is REQUIRED:
        options["required"] = True
      else:
        options |= other if isinstance(other, Mapping) else {"choices": other}
    parser.add_argument(f"--{name.replace('_', '-')}", **options)


def at_least(args: argparse.Namespace, **least: int) -> None:
  """Raises a ValueError if a flag is below the flag's least value."""
  for name, bound in least.items():
    value = vars(args).get(name)
    if value is not None and value < bound:
      flag = name.replace("_", "-")
      raise ValueError(f"--{flag} must be at least {bound}, got {value}.")


def fastest_as_gin(name: str, template: str, listed: str) -> WriteFn:
  """Returns a function that writes the fastest row of a table as a gin file.

  Args:
    name: the gin file's name.
    template: the gin file's text. Braces enclose the names of flags, of the table's
      facts and of the columns.
    listed: the column with a sequence, which becomes a tuple in gin.
  """

  def write(table, args):
    best = max(table.rows, key=lambda row: row["speed"])
    items = "".join(f"{item!r}, " for item in best[listed]).rstrip()
    words = {**table.facts, **vars(args), **best, listed: items}
    return [put(args.output, name, template.format_map(words))]

  return write


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of `python -m benchmarks`, or of another package.

  Attributes:
    about: the documentation, for --help.
    make: makes the table from the flags.
    flags: the command's flags.
    fixed: values of flags that the command line does not have.
    output: the default folder of files; None if --output is required.
    write: writes files besides the table's files, or None.
    draw: returns a figure of the table, or None; called if --chart is set.
    is_figure: whether `draw` is always called.
  """

  about: str
  make: Callable[[argparse.Namespace], Table]
  flags: Flags = dataclasses.field(default_factory=dict)
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  output: str | None = None
  write: WriteFn | None = None
  draw: Callable[[Table], Any] | None = None
  is_figure: bool = False

  def parser(self, program: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser; `program` is as in `python -m benchmarks machine`."""
    parser = argparse.ArgumentParser(
      prog=program,
      description=self.about,
      epilog="Writes JSON, CSV and Markdown. Leave the cores idle for the timed "
      "programs.",
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(**self.fixed)
    charted = {"chart": False} if self.draw and not self.is_figure else {}
    add_flags(parser, {**self.flags, **charted})
    about = "folder for JSON, CSV and Markdown, and for cells.jsonl if cells are kept"
    kept = f"keep the JSON as {report.DATA}/NAME.json, the source of the pages"
    output = (self.output, about) if self.output else (str, about, REQUIRED)
    add_flags(parser, {"output": output, "keep": (str, kept)})
    return parser

  def main(self, argv: Sequence[str], program: str | None = None) -> int:
    """Makes the table, then prints and writes it.

    Args:
      argv: the flags.
      program: the command line's start; see `parser`.

    Returns:
      The exit status: 0, or 1 after an error message about the input.
    """
    parser = self.parser(program)
    args = parser.parse_args(argv)
    draws = self.is_figure or getattr(args, "chart", False)
    try:
      if draws:
        plotting.require_matplotlib()
      check_platform()
      table = self.make(args)
      settings = table.settings or vars(args)
      settings = {n: x for n, x in settings.items() if n not in ("output", "keep")}
      command = f"{parser.prog} {shlex.join(argv)}"
      table = dataclasses.replace(table, settings=settings, command=command)
      files = [*self.write(table, args)] if self.write else []
      files += table.write(args.output)
      if draws and (figure := self.draw(table)):
        files += plotting.save(figure, args.output, table.name)
      if args.keep:
        files += keep(table, args.keep)
    except (ValueError, OSError) as error:
      print(f"error: {error}", file=sys.stderr)
      return 1
    print(table.markdown(), end="")
    print(f"Written: {', '.join(files)}", file=sys.stderr)
    return 0


def keep(table: Table, name: str) -> list[str]:
  """Writes a table and the tables before it for `report`; returns the paths."""
  tables = {name: table}
  for other in table.before:
    tables[f"{name}_{other.name}"] = dataclasses.replace(
      other, made=table.made, command=table.command
    )
  return [put(report.DATA, f"{name}.json", t.json()) for name, t in tables.items()]
