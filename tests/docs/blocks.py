"""Fenced blocks of a Markdown page and the commands in a block."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

# Comments above a block that say how to handle the block.
_NOTE = re.compile(r"<!-- (not run|file): (.+?) -->", re.S)
# Bash parses a block's loops, quotes and comments. `python` prints its arguments.
_RECORD = f"""
set -euo pipefail
python() {{ {sys.executable} -c \
  'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"; }}
"""


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block of a page.

  Attributes:
    page: the page's file.
    line: the line of the opening fence.
    language: the word after the opening fence.
    text: the block's content.
    why_not: the reason for not running the block; None if the block is run.
    file: the name of the file that the block shows; None if the block shows no file.
  """

  page: pathlib.Path
  line: int
  language: str
  text: str
  why_not: str | None = None
  file: str | None = None

  def commands(self) -> list[list[str]]:
    """Returns the arguments of every `python` command of the block.

    A loop runs for the first value and the last value.
    """
    text = re.sub(r"(for \w+ in \S+)[^;\n]*( \S+; do)", r"\1\2", self.text)
    done = subprocess.run(
      ["bash", "-c", _RECORD + text], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{self.page}:{self.line}: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def blocks(page: pathlib.Path) -> Iterator[Block]:
  """Yields a page's fenced blocks with the notes of the comment above a block."""
  lines = page.read_text().splitlines()
  start, above = None, ""
  for number, line in enumerate(lines):
    if start is None and (fence := re.match(r"\s*```(\{?[\w-]+\}?|)", line)):
      start = number
      language = fence[1]
    elif start is not None and line.strip() == "```":
      text = "\n".join(lines[start + 1 : number]) + "\n"
      notes = dict(_NOTE.findall(above)) if above.rstrip().endswith("-->") else {}
      yield Block(
        page, start + 1, language, text, notes.get("not run"), notes.get("file")
      )
      start, above = None, ""
    elif start is None:
      above = "" if not line.strip() else above + line + "\n"
  assert start is None, f"{page}:{start}: a block without an end"
