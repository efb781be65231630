"""What the scripts have in common: flags, files, messages."""

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence

from specdec_t5x.bench import flags
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.table import Table

AddFlags = Callable[[argparse.ArgumentParser], None]


@dataclasses.dataclass(frozen=True)
class Command:
  """A script.

  Attributes:
    make: makes the table from the flags and, where any are kept, the cells.
    add_flags: adds the script's own flags.
    draw: draws the table into the folder, and returns the files; None for a table.
    check: raises a ValueError before any work where something is missing.
  """

  make: Callable[[argparse.Namespace, Cells], Table]
  add_flags: AddFlags = lambda parser: None
  draw: Callable[[Table, str], Sequence[str]] | None = None
  check: Callable[[], None] = lambda: None

  def main(self, about: str, argv: Sequence[str] | None = None) -> int:
    """Runs the script.

    Args:
      about: its documentation, for --help.
      argv: the flags; the process's own where None.

    Returns:
      The exit status: 0, or 1 after printing what is wrong with the input.
    """
    parser = argparse.ArgumentParser(
      description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    self.add_flags(parser)
    flags.add_output(parser)
    args = parser.parse_args(argv)
    try:
      self.check()
      cells = Cells(args.output)
      table = self.make(args, cells)
      files = [*map(str, table.write(args.output))]
      if self.draw:
        files += self.draw(table, args.output)
    except (ValueError, OSError) as error:
      print(f"error: {error}", file=sys.stderr)
      return 1
    if other := cells.unasked():
      print(
        f"{cells.path} has {other} more cells, of other settings, code or machines; "
        "they are not shown.",
        file=sys.stderr,
      )
    print(table.markdown(), end="")
    print(f"Written: {', '.join(files)}", file=sys.stderr)
    return 0
