"""The common part of the commands: flags, tables, figures and error messages."""

import argparse
import dataclasses
import importlib.util
import pathlib
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import report
from benchmarks.table import Table, put, tables
from specdec_t5x.platforms import check_platform

_TYPES = {"int": int, "float": float}


@dataclasses.dataclass(frozen=True)
class Command:
  """A command of `python -m benchmarks`, or of another package."""

  name: str  # The entry of tables.toml with the text of --help and the flags.
  make: Callable[[argparse.Namespace], Table]  # Makes the table from the flags.
  package: str = "benchmarks"  # The package with the tables.toml.
  # Returns a figure of the table. A flag --chart makes the figure optional.
  draw: Callable[[Table], Any] | None = None

  @property
  def _flags(self) -> dict[str, Mapping[str, Any]]:
    """The entry's flags, with the keywords of argparse and the least value."""
    flags = {**tables("benchmarks")["flags"], **tables(self.package)["flags"]}
    groups = tables("benchmarks")["groups"]
    names = tables(self.package)[self.name].get("flags", [])
    while not groups.keys().isdisjoint(names):
      names = [flag for name in names for flag in groups.get(name, [name])]
    return {name: flags[name] for name in names}

  def parser(self) -> argparse.ArgumentParser:
    """Returns the parser of the entry's flags."""
    entry = tables(self.package)[self.name]
    parser = argparse.ArgumentParser(
      prog=f"python -m {self.package} {self.name}",
      description=entry["about"],
      epilog="Leave the cores idle for the timed programs.",
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    defaults = entry.get("defaults", {})
    about = "folder for JSON and Markdown, and for kept cells"
    parser.add_argument("--output", required="output" not in defaults, help=about)
    about = f"keep the JSON as {report.DATA}/NAME.json, the source of the pages"
    parser.add_argument("--keep", metavar="NAME", help=about)
    for name, keywords in self._flags.items():
      options = {key: value for key, value in keywords.items() if key != "least"}
      if "type" in options:
        options["type"] = _TYPES[options["type"]]
      if options.get("default", []) != []:
        options["help"] += " (%(default)s)"
      parser.add_argument(f"--{name.replace('_', '-')}", **options)
    parser.set_defaults(**defaults)
    return parser

  def main(self, argv: Sequence[str]) -> int:
    """Makes the table, then prints and writes it.

    Returns the exit status: 0, or 1 after an error message about the input.
    """
    parser = self.parser()
    args = parser.parse_args(argv)
    draws = self.draw and getattr(args, "chart", True)
    try:
      if draws and importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
          "Figures need matplotlib, but matplotlib is not installed. Install it by "
          "pip install 'specdec_t5x[reproduce]'; the tables need no matplotlib."
        )
      for name, options in self._flags.items():
        values = getattr(args, name) if "least" in options else []
        for value in values if isinstance(values, list) else [values]:
          if value is not None and not value >= (least := options["least"]):
            flag = name.replace("_", "-")
            raise ValueError(f"--{flag} must be at least {least}, got {value}.")
      check_platform()
      table = self.make(args)
      settings = table.settings or vars(args)
      settings = {n: x for n, x in settings.items() if n not in ("output", "keep")}
      command = f"{parser.prog} {shlex.join(argv)}"
      table = dataclasses.replace(table, settings=settings, command=command)
      files = table.write(args.output)
      if draws:
        files += _save(self.draw(table), args.output, table.name)
      if args.keep:
        files.append(put(report.DATA, f"{args.keep}.json", table.json()))
    except (ValueError, OSError) as error:
      print(f"error: {error}", file=sys.stderr)
      return 1
    print(table.markdown(), end="")
    print(f"Written: {', '.join(files)}", file=sys.stderr)
    return 0


def new_figure(width: float, height: float, panels: int = 1):
  """Returns a figure of matplotlib and a list of axes side by side."""
  # `Figure` needs no window system and no global state, unlike pyplot.
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), layout="constrained")
  axes = figure.subplots(1, panels, squeeze=False)[0]
  for axis in axes:
    axis.grid(alpha=0.3, linewidth=0.6)
  return figure, list(axes)


def _save(figure, folder: str, name: str) -> list[str]:
  """Writes NAME.png and NAME.svg into an existing folder and returns their paths."""
  from matplotlib import rc_context

  paths = [pathlib.Path(folder) / f"{name}.{kind}" for kind in ("png", "svg")]
  figure.savefig(paths[0], dpi=150)
  # Without a date and random names, equal figures give equal files.
  with rc_context({"svg.hashsalt": name}):
    figure.savefig(paths[1], metadata={"Date": None})
  return list(map(str, paths))
