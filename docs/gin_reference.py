"""The gin reference: every knob of configs/, with its default and its comment.

A file's knobs are its macros (capital letters) above the line `# ---- Wiring ----`, or
in all of it where there is no such line. The page is made when the site is built.
"""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Sequence

# Titles and files of the parts. A file is shown once.
PARTS = (
  (
    "Every run",
    tuple(
      f"runs/{name}.gin"
      for name in ("common", "infer", "eval", "speculative", "baseline")
    ),
  ),
  ("Decoder-only networks and other runs", ("runs/*.gin",)),
  ("Ways to draft", ("drafters/*.gin",)),
  ("Contributed methods", ("contrib/*.gin",)),
  ("Policies of a draft's length", ("policies/*.gin",)),
  ("Training", ("train/*.gin",)),
  ("Pairs: sizes and paths", ("pairs/*.gin",)),
  ("Jobs", ("*.gin",)),
)
_HEADER = """# Gin reference

Made from the files of `configs/` when the site is built: each file's purpose, and the
macros that it heads, which `--gin.NAME=VALUE` sets. `REQUIRED` must be given.
"""


@dataclasses.dataclass(frozen=True)
class Knob:
  """A macro: its name, default and comment, as in the file."""

  name: str
  default: str
  comment: str


@dataclasses.dataclass(frozen=True)
class GinFile:
  """A file of configs/: the path relative to configs/, the header and the knobs."""

  path: str
  about: str
  knobs: tuple[Knob, ...]


def write(root: pathlib.Path) -> None:
  """Writes docs/reference/gin.md if the contents have changed."""
  page = root / "docs" / "reference" / "gin.md"
  text = to_markdown(root / "configs")
  if not page.exists() or page.read_text() != text:
    page.write_text(text)


def to_markdown(configs: pathlib.Path) -> str:
  """Returns the page."""
  lines, seen = [_HEADER], set()
  for title, patterns in PARTS:
    lines.append(f"## {title}\n")
    for path in [p for pattern in patterns for p in sorted(configs.glob(pattern))]:
      if path not in seen:
        seen.add(path)
        lines += _section(read(path, configs))
  return "\n".join(lines)


def read(path: pathlib.Path, configs: pathlib.Path) -> GinFile:
  """Returns the contents of a gin file."""
  lines = path.read_text().splitlines()
  about = [line[1:].removeprefix(" ") for line in _leading_comment(lines)]
  above = lines[: _wiring(lines)]
  return GinFile(str(path.relative_to(configs)), "\n".join(about), tuple(_knobs(above)))


def _leading_comment(lines: Sequence[str]) -> Iterator[str]:
  for line in lines:
    if not line.startswith("#"):
      return
    yield line


def _wiring(lines: Sequence[str]) -> int:
  marks = [n for n, line in enumerate(lines) if line.startswith("# ---- Wiring")]
  return marks[0] if marks else len(lines)


def _knobs(lines: Sequence[str]) -> Iterator[Knob]:
  """Yields macros. An indented comment line continues the comment above."""
  knob = None
  for line in _whole_values(lines):
    found = re.match(r"([A-Z][A-Z0-9_]*) = (.*)$", line)
    more = re.match(r" {8,}# ?(.*)$", line)
    if knob and more:
      knob = dataclasses.replace(knob, comment=f"{knob.comment} {more[1]}".strip())
      continue
    if knob:
      yield knob
    knob = Knob(found[1], *_default_and_comment(found[2])) if found else None
  if knob:
    yield knob


def _whole_values(lines: Sequence[str]) -> Iterator[str]:
  """Yields lines. A value of several lines, up to the closing bracket, is one line."""
  begun, depth = "", 0
  for line in lines:
    is_value = depth > 0 or re.match(r"[A-Z][A-Z0-9_]* = ", line)
    if not is_value:
      yield line
      continue
    value, _ = _default_and_comment(line) if depth else (line, "")
    begun = f"{begun}{value}" if begun.endswith(("{", "(", "[")) else f"{begun} {value}"
    code = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", line)
    depth += sum(code.count(x) for x in "([{") - sum(code.count(x) for x in ")]}")
    if depth <= 0:
      yield begun.strip().replace(", }", "}").replace(", )", ")")
      begun, depth = "", 0


def _default_and_comment(text: str) -> tuple[str, str]:
  """Splits a line into value and comment. A value may have a # in quotes."""
  found = re.match(r"((?:'[^']*'|\"[^\"]*\"|[^#'\"])*)(?:#\s*(.*))?$", text)
  value = found[1].strip().replace("%gin.", "")
  return value, found[2] or ""


def _section(file: GinFile) -> Iterator[str]:
  yield f"### configs/{file.path}\n"
  yield _markdown(file.about)
  if file.knobs:
    yield "\n| macro | default | |\n|---|---|---|"
    for knob in file.knobs:
      cells = f"`{knob.name}`", f"`{knob.default}`", _cell(knob.comment)
      yield f"| {' | '.join(cells)} |"
  yield ""


def _cell(text: str) -> str:
  return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _markdown(about: str) -> str:
  """Returns a header's comment with its indented commands as code."""
  out, inside = [], False
  for line in about.splitlines():
    code = line.startswith("  ") or (inside and not line)
    if code and not inside:
      out.append("```text")
    if inside and not code:
      out.append("```")
    inside = code
    out.append(line if code else _cell(line))
  return "\n".join([*out, "```"] if inside else out)
