"""What the commands have in common: flags in, a table out, messages."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec_t5x.bench import plotting, report
from specdec_t5x.bench.table import Table, put
from specdec_t5x.platforms import check_platform

# From a table and the flags to the paths of what was written.
WriteFn = Callable[[Table, argparse.Namespace], Sequence[str]]
# Flags by name, as attributes have it: a default, whose type and whether it is a list
# are the flag's; or the type, or a list of it, where there is none. With it, what
# --help says, and as needed the values that there are, that it has to be given, or more
# that argparse takes.
Flags = Mapping[str, Any]
REQUIRED = object()
# What --help says of flags that several commands have.
_ABOUT = {
  "temperature": "of the sampling; 0 is greedy",
  "temperatures": "of the sampling; 0 is greedy",
  "gamma": "tokens drafted a call",
  "batch": "inputs at once",
  "seed": "of the sampling",
  "max_length": "most tokens of an output",
  "recorded": "measure nothing: show what --output has, the rest as not measured",
  "chart": "draw a figure, too; needs matplotlib",
}


def add_flags(parser: argparse._ActionsContainer, flags: Flags) -> None:
  """Adds flags to what reads them."""
  for name, flag in flags.items():
    default, about, *others = flag if isinstance(flag, tuple) else (flag, "")
    about = about or _ABOUT.get(name, "")
    first = default[0] if isinstance(default, list) else default
    if default is False:
      how = {"action": "store_true", "help": about}
    elif isinstance(first, type):
      how = {"type": first, "help": about}
    else:
      about = f"{about} (%(default)s)".strip()
      how = {"type": type(first), "default": default, "help": about}
    if isinstance(default, list):
      how["nargs"] = "+"
    for other in others:
      if other is REQUIRED:
        how["required"] = True
      else:
        how |= other if isinstance(other, Mapping) else {"choices": other}
    parser.add_argument(f"--{name.replace('_', '-')}", **how)


def at_least(args: argparse.Namespace, **least: int) -> None:
  """Raises a ValueError where a flag is below what it must be at least."""
  for name, bound in least.items():
    value = vars(args).get(name)
    if value is not None and value < bound:
      flag = name.replace("_", "-")
      raise ValueError(f"--{flag} must be at least {bound}, got {value}.")


def write_table(table: Table, args: argparse.Namespace) -> list[str]:
  """Writes a table into the folder --output."""
  return table.write(args.output)


def fastest_as_gin(name: str, template: str, listed: str) -> WriteFn:
  """Returns what writes a table, and a gin file of its row of the largest "speed".

  Args:
    name: of the file.
    template: its text, in braces flags, the table's facts and the row's values.
    listed: the value that is a tuple in gin.
  """

  def write(table, args):
    best = max(table.rows, key=lambda row: row["speed"])
    items = "".join(f"{each!r}, " for each in best[listed]).rstrip()
    words = {**table.facts, **vars(args), **best, listed: items}
    text = template.format_map(words)
    return [put(args.output, name, text), *write_table(table, args)]

  return write


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of `python -m specdec_t5x.bench`, or of another package.

  Attributes:
    about: its documentation, for --help.
    make: makes the table from the flags.
    flags: its own.
    fixed: flags that nobody gives.
    output: where files go; None where it has to be said.
    write: writes what was found.
    draw: draws it, where --chart asks for it: the figure, None where there is none.
    is_figure: whether it is always drawn.
  """

  about: str
  make: Callable[[argparse.Namespace], Table]
  flags: Flags = dataclasses.field(default_factory=dict)
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  output: str | None = None
  write: WriteFn = write_table
  draw: Callable[[Table], Any] | None = None
  is_figure: bool = False

  def parser(self, program: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the flags.

    Args:
      program: how the command is called, as in `python -m specdec_t5x.bench machine`.
    """
    parser = argparse.ArgumentParser(
      prog=program,
      description=self.about,
      epilog="Writes JSON, CSV and Markdown. Leave all cores to what is timed.",
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(**self.fixed)
    charted = {"chart": False} if self.draw and not self.is_figure else {}
    add_flags(parser, {**self.flags, **charted})
    about = "for JSON, CSV and Markdown, and for cells.jsonl where cells are kept"
    kept = f"its JSON becomes {report.DATA}/NAME.json, of which pages are rendered"
    output = (self.output, about) if self.output else (str, about, REQUIRED)
    add_flags(parser, {"output": output, "keep": (str, kept)})
    return parser

  def main(self, argv: Sequence[str], program: str | None = None) -> int:
    """Makes the table, prints it and writes it.

    Args:
      argv: the flags.
      program: how the command is called; see `parser`.

    Returns:
      The exit status: 0, or 1 after printing what is wrong with the input.
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
      files = [*self.write(table, args)]
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
  """Puts a table, and those before it, where `report` finds them; returns the paths."""
  named = {name: table, **{f"{name}_{each.name}": each for each in table.before}}
  texts = {
    name: dataclasses.replace(each, made=table.made, command=table.command).json()
    for name, each in named.items()
  }
  return [put(report.DATA, f"{name}.json", text) for name, text in texts.items()]
