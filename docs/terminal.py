"""Draws docs/_static/terminal.svg: a terminal in which the README's first command runs.

  python docs/terminal.py

Run it in the repository's root. The command runs in a terminal of its own and writes
its results into a temporary folder.
"""

import fcntl
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

COMMAND = ("-m", "t5x.infer", "--gin_file=configs/spec_ende.gin")
COLUMNS, ROWS = 96, 40
PICTURE = pathlib.Path(__file__).with_name("_static") / "terminal.svg"


def screen(arguments: list[str]) -> list[str]:
  """Returns the lines that a terminal shows when a Python command has ended."""
  ours, theirs = pty.openpty()
  size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
  process = subprocess.Popen([sys.executable, *arguments], stdout=theirs, stderr=theirs)
  os.close(theirs)
  text = b""
  try:
    while part := os.read(ours, 65536):
      text += part
  except OSError:  # Linux raises an error after the last writer has closed.
    pass
  if process.wait():
    raise RuntimeError(f"The command ended with {process.returncode}: {text.decode()}")
  # A carriage return overwrites the line, so the last text of a line is visible.
  lines = [line.rstrip("\r").split("\r")[-1] for line in text.decode().split("\n")]
  return lines


def _replaced(line: str, shown: dict[str, str]) -> str:
  for path, name in shown.items():
    line = line.replace(path, name)
  return line


def draw(lines: list[str], path: pathlib.Path) -> None:
  """Draws the lines of a terminal. Long lines are wrapped."""
  wrapped = (textwrap.wrap(line, COLUMNS, subsequent_indent="  ") for line in lines)
  lines = [line for part in wrapped for line in part]
  height = 0.19 * (len(lines) + 2)
  figure = pyplot.figure(figsize=(9.6, height), facecolor="#1e1e2e")
  figure.text(
    *(0.02, 1 - 0.19 / height),
    "\n".join(lines),
    family="monospace",
    fontsize=9,
    color="#e0e0e8",
    verticalalignment="top",
    linespacing=1.35,
    parse_math=False,
  )
  with matplotlib.rc_context({"svg.hashsalt": "terminal", "svg.fonttype": "none"}):
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
  """Runs the command and draws the terminal."""
  with tempfile.TemporaryDirectory() as output:
    lines = screen([*COMMAND, f"--gin.INFER_OUTPUT_DIR='{output}'"])
    shown = {output: "runs/spec_ende", f"{pathlib.Path.cwd()}/": ""}
    lines = [_replaced(line, shown) for line in lines]
  draw(["$ python " + " ".join(COMMAND), *lines], PICTURE)


if __name__ == "__main__":
  main()
