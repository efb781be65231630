"""The common part of the commands: flags, tables and error messages."""

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import plotting, report
from benchmarks.table import Table, put, tables
from specdec_t5x.platforms import check_platform

_TYPES = {"int": int, "float": float}


def at_least(args: argparse.Namespace, **least: int) -> None:
  """Raises a ValueError if a flag, or a value of a flag, is below the least value."""
  for name, bound in least.items():
    value = vars(args).get(name)
    for each in value if isinstance(value, list) else [value]:
      if each is not None and each < bound:
        flag = name.replace("_", "-")
        raise ValueError(f"--{flag} must be at least {bound}, got {each}.")


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of `python -m benchmarks`, or of another package.

  Attributes:
    name: the entry of tables.toml with the text of --help and the flags.
    make: makes the table from the flags.
    package: the package with the tables.toml.
    output: the default folder of files; None if --output is required.
    draw: returns a figure of the table, or None; a flag --chart makes it optional.
  """

  name: str
  make: Callable[[argparse.Namespace], Table]
  package: str = "benchmarks"
  output: str | None = None
  draw: Callable[[Table], Any] | None = None

  def parser(self) -> argparse.ArgumentParser:
    """Returns the parser of the entry's flags."""
    entry = tables(self.package)[self.name]
    parser = argparse.ArgumentParser(
      prog=f"python -m {self.package} {self.name}",
      description=entry["about"],
      epilog="Leave the cores idle for the timed programs.",
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    about = "folder for JSON and Markdown, and for kept cells"
    is_needed = self.output is None
    parser.add_argument("--output", default=self.output, required=is_needed, help=about)
    about = f"keep the JSON as {report.DATA}/NAME.json, the source of the pages"
    parser.add_argument("--keep", metavar="NAME", help=about)
    flags = {**tables("benchmarks")["flags"], **tables(self.package)["flags"]}
    names = entry.get("flags", [])
    while groups := [name for name in names if name in tables("benchmarks")["groups"]]:
      group = tables("benchmarks")["groups"][groups[0]]
      i = names.index(groups[0])
      names = [*names[:i], *group, *names[i + 1 :]]
    for name in names:
      options = dict(flags[name])
      if "type" in options:
        options["type"] = _TYPES[options["type"]]
      if options.get("default", []) != []:
        options["help"] += " (%(default)s)"
      parser.add_argument(f"--{name.replace('_', '-')}", **options)
    parser.set_defaults(**entry.get("defaults", {}))
    return parser

  def main(self, argv: Sequence[str]) -> int:
    """Makes the table, then prints and writes it.

    Returns:
      The exit status: 0, or 1 after an error message about the input.
    """
    parser = self.parser()
    args = parser.parse_args(argv)
    draws = self.draw and getattr(args, "chart", True)
    try:
      if draws:
        plotting.require_matplotlib()
      check_platform()
      table = self.make(args)
      settings = table.settings or vars(args)
      settings = {n: x for n, x in settings.items() if n not in ("output", "keep")}
      command = f"{parser.prog} {shlex.join(argv)}"
      table = dataclasses.replace(table, settings=settings, command=command)
      files = table.write(args.output)
      if draws and (figure := self.draw(table)):
        files += plotting.save(figure, args.output, table.name)
      if args.keep:
        files.append(put(report.DATA, f"{args.keep}.json", table.json()))
    except (ValueError, OSError) as error:
      print(f"error: {error}", file=sys.stderr)
      return 1
    print(table.markdown(), end="")
    print(f"Written: {', '.join(files)}", file=sys.stderr)
    return 0
