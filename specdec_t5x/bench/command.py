"""What the commands have in common: flags in, a table out, messages."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

from specdec_t5x.bench.table import Table

# From a table and the flags to the paths of what was written.
WriteFn = Callable[[Table, argparse.Namespace], Sequence[str]]


def write_table(table: Table, args: argparse.Namespace) -> list[str]:
  """Writes a table into the folder --output."""
  return table.write(args.output)


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of `python -m specdec_t5x.bench`.

  Attributes:
    about: its documentation, for --help.
    make: makes the table from the flags.
    add_flags: adds the command's flags, --output among them.
    write: writes what was found.
  """

  about: str
  make: Callable[[argparse.Namespace], Table]
  add_flags: Callable[[argparse.ArgumentParser], None]
  write: WriteFn = write_table

  def parser(self, name: str | None = None) -> argparse.ArgumentParser:
    """Returns what reads the flags; `name` is the command's."""
    parser = argparse.ArgumentParser(
      prog=name and f"python -m specdec_t5x.bench {name}",
      description=self.about,
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    self.add_flags(parser)
    return parser

  def main(self, argv: Sequence[str], name: str | None = None) -> int:
    """Makes the table, prints it and writes it.

    Args:
      argv: the flags.
      name: of the command, for --help.

    Returns:
      The exit status: 0, or 1 after printing what is wrong with the input.
    """
    args = self.parser(name).parse_args(argv)
    try:
      table = self.make(args)
      files = self.write(table, args)
    except (ValueError, OSError) as error:
      print(f"error: {error}", file=sys.stderr)
      return 1
    print(table.markdown(), end="")
    print(f"Written: {', '.join(files)}", file=sys.stderr)
    return 0
