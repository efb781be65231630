"""The fenced blocks of a Markdown page, and the commands in them."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

# The words before a block that say what to do with it.
_NOTE = re.compile(r"<!-- (not run|file): (.+?) -->", re.S)
# Bash itself reads a block: loops, quotes, comments. `python` tells its arguments.
_RECORD = f"""
set -euo pipefail
python() {{ {sys.executable} -c \
  'import json, sys; print(json.dumps(sys.argv[1:]))' "$@"; }}
"""


@dataclasses.dataclass(frozen=True)
class Block:
  """A fenced block.

  Attributes:
    page: the file.
    line: of the fence.
    language: behind the fence.
    text: what is in it.
    why_not: why it isn't run; None where it is.
    file: the name of the file that it shows; None where it is none.
  """

  page: pathlib.Path
  line: int
  language: str
  text: str
  why_not: str | None = None
  file: str | None = None

  def commands(self) -> list[list[str]]:
    """Returns the arguments of each `python` that the block runs.

    A loop runs its first and its last value.
    """
    text = re.sub(r"(for \w+ in \S+)[^;\n]*( \S+; do)", r"\1\2", self.text)
    done = subprocess.run(
      ["bash", "-c", _RECORD + text], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{self.page}:{self.line}: {done.stderr}"
    return [json.loads(line) for line in done.stdout.splitlines()]


def blocks(page: pathlib.Path) -> Iterator[Block]:
  """Yields a page's fenced blocks, with what the comment above each says."""
  lines = page.read_text().splitlines()
  start, above = None, ""
  for number, line in enumerate(lines):
    if start is None and (fence := re.match(r"\s*```(\{?[\w-]+\}?|)", line)):
      start, language = number, fence[1]
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
