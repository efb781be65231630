"""Measures how plainly the code reads: pro-forms in sentences, and packed statements.

  python scripts/reading.py            # the table of all folders
  python scripts/reading.py --worst 20 specdec_t5x/core

The reader has to find the noun behind a pro-form ("it", "that", "what", "whose", "one",
"those", "such"). The measure points at sentences to rewrite. A low number does not make
a text good. Cells of tables count, except in tables between `<!-- table NAME -->` and
`<!-- end -->`, which `python -m benchmarks report` renders.
"""

import argparse
import ast
import collections
import dataclasses
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator

ROOT = pathlib.Path(__file__).parents[1]
CODE = ("specdec_t5x", "t5x_runtime", "lab", "tests", "scripts", "examples")
FOLDERS = (*CODE, "configs", "docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
_PRO_FORMS = """
it its they them their one ones that what whose those these this such which who whom
same other others whichever itself themselves both each all any none
"""
PRO_FORMS = frozenset(_PRO_FORMS.split())
FREE = frozenset({"what", "whose", "whichever"})
# Openings and phrases that make the reader search for a noun.
PATTERNS = (
  r"\b(a|the) probs\b",
  r"\bReturns what\b",
  r"\bwhat .{1,30} is of\b",
  r"\bwhose (it|they) (is|are)\b",
  r"\bgoes? by\b",
  r"\bas many as pay\b",
  r"\bless (some|what) of\b",
  r"\bof numbers\b",
  r"\bis told\b",
  r"^(Of|So|Such|Whose) ",
  r"\bmeanwhile\b",
  r"\ball the same\b",
  r"\bby itself anew\b",
)
# `make docs` writes this page.
_GENERATED = ROOT / "docs" / "reference" / "gin.md"
_SECTION = re.compile(
  r"^\s*(Args|Returns|Raises|Attributes|Yields|Shapes|Sources?|Examples?|Notes?):.*$",
  re.M,
)

_CODE_OR_COMMENT = re.compile(r"```.*?```|^<!--.*?-->", re.S | re.M)
# `python -m benchmarks report` writes the text between these two comments.
_RENDERED = re.compile(r"^<!-- table .*?^<!-- end -->", re.S | re.M)
# A row of headings, the line below the headings, and rows.
_TABLE = re.compile(r"^\|.*\|\n\|[-:| ]+\|\n(?:\|.*\|(?:\n|\Z))*", re.M)
# A vertical bar after a backslash is text.
_CELL_END = re.compile(r"(?<!\\)\|")


@dataclasses.dataclass(frozen=True)
class Text:
  """A docstring, a comment, a message, a comment of gin, or a part of a page.

  A part of a page is a paragraph, or a cell of a table that is written by hand.
  """

  kind: str
  file: pathlib.Path
  line: int
  content: str
  # A short cell of a table is a statement, a short line of prose usually is not.
  shortest: int = 4

  def sentences(self) -> Iterator[str]:
    """Yields the sentences of `shortest` words or more, without code and headings."""
    text = re.sub(r"```.*?```|>>>.*?(?:\n\n|$)", " ", self.content, flags=re.S)
    text = re.sub(r"``?[^`]*``?", "x", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = _SECTION.sub("\n\n", text)
    for part in re.split(r"\n\s*\n|\n\s*(?=[-*] |\w+: )", text):
      for sentence in re.split(r"(?<=[.!?;:])\s+", " ".join(part.split())):
        if len(words_of(sentence)) >= self.shortest:
          yield sentence


def words_of(sentence: str) -> list[str]:
  """Returns the words of a sentence in lower case."""
  return [word.lower() for word in re.findall(r"[A-Za-z][A-Za-z'-]*", sentence)]


def texts(file: pathlib.Path) -> Iterator[Text]:
  """Yields the texts of a .py, .md or .gin file."""
  source = file.read_text(encoding="utf-8")
  if file.suffix == ".md":
    yield from _of_page(file, source)
  elif file.suffix == ".gin":
    for number, line in enumerate(source.splitlines(), 1):
      if "#" in line:
        yield Text("gin", file, number, line.split("#", 1)[1])
  else:
    yield from _of_python(file, source)


def _of_page(file: pathlib.Path, source: str) -> Iterator[Text]:
  blank = source
  for pattern in (_RENDERED, _CODE_OR_COMMENT):
    blank = pattern.sub(_blank_lines, blank)
  for found in _TABLE.finditer(blank):
    first = blank[: found.start()].count("\n") + 1
    for number, row in enumerate(found[0].splitlines(), first):
      for cell in _CELL_END.split(row.strip().strip("|")):
        yield Text("page", file, number, cell.strip(), shortest=1)
  prose = _TABLE.sub(_blank_lines, blank)
  for found in re.finditer(r"(?:^(?!#).+\n?)+", prose, flags=re.M):
    yield Text("page", file, prose[: found.start()].count("\n") + 1, found[0])


def _blank_lines(found: re.Match) -> str:
  """Returns the line ends of a text, so that later lines keep their numbers."""
  return "\n" * found[0].count("\n")


def _of_python(file: pathlib.Path, source: str) -> Iterator[Text]:
  documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, documented) and (content := ast.get_docstring(node)):
      yield Text("docstring", file, getattr(node, "lineno", 1), content)
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
      parts = (
        part.value
        for part in ast.walk(node.exc.args[0])
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
      )
      yield Text("message", file, node.lineno, " ".join(parts))
  for token in tokenize.generate_tokens(io.StringIO(source).readline):
    if token.type == tokenize.COMMENT:
      yield Text("comment", file, token.start[0], token.string.lstrip("# "))


def files_of(paths: Iterable[str]) -> list[pathlib.Path]:
  """Returns the files of texts in folders of the repository."""
  found = []
  for path in paths:
    start = ROOT / path
    files = [start] if start.is_file() else sorted(start.rglob("*"))
    found += [
      file
      for file in files
      if file.suffix in (".py", ".md", ".gin")
      and file != _GENERATED
      and not any(part.startswith((".", "_build")) for part in file.parts[1:])
    ]
  return found


def room_of(file: pathlib.Path) -> str:
  """Returns the folder that a file counts for, at most two levels deep."""
  parts = file.relative_to(ROOT).parts
  return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def densities(found: Iterable[Text]) -> dict[str, tuple[float, float]]:
  """Returns pro-forms and free relatives per 100 words, by kind and by folder."""
  totals = collections.defaultdict(collections.Counter)
  for text in found:
    keys = [text.kind]
    if text.kind != "message":
      keys.append(room_of(text.file))
    for sentence in text.sentences():
      words = words_of(sentence)
      counts = {
        "words": len(words),
        "pro": sum(word in PRO_FORMS for word in words),
        "free": sum(word in FREE for word in words),
      }
      for key in keys:
        totals[key].update(counts)
  return {
    key: (100 * total["pro"] / total["words"], 100 * total["free"] / total["words"])
    for key, total in sorted(totals.items())
    if total["words"] > 100
  }


def matches(sentence: str) -> list[str]:
  """Returns the patterns to avoid that a sentence has."""
  return [pattern for pattern in PATTERNS if re.search(pattern, sentence)]


def packing(file: pathlib.Path) -> collections.Counter:
  """Returns how often a Python file packs values instead of naming them.

  splats: calls with a splatted local tuple; lambdas: lambdas bound to a name; tuples:
  unrelated values in one tuple assignment; parameters: the most positional parameters.
  """
  counts = collections.Counter()
  for node in ast.walk(ast.parse(file.read_text())):
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
      positional = len(node.args.posonlyargs) + len(node.args.args)
      counts["parameters"] = max(counts["parameters"], positional)
      counts["splats"] += _splats(node)
    if isinstance(node, ast.Assign):
      values = [node.value]
      if isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple):
        values = node.value.elts
        counts["tuples"] += len(values) > 1
      counts["lambdas"] += sum(isinstance(value, ast.Lambda) for value in values)
  return counts


def _splats(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
  """Returns the number of calls that splat a tuple made in the function."""
  made = {
    target.id
    for node in ast.walk(function)
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
    for target in node.targets
    if isinstance(target, ast.Name)
  }
  return sum(
    isinstance(argument, ast.Starred)
    and isinstance(argument.value, ast.Name)
    and argument.value.id in made
    for node in ast.walk(function)
    if isinstance(node, ast.Call)
    for argument in node.args
  )


def packed(paths: Iterable[str]) -> dict[str, float]:
  """Returns the packing of folders per 1,000 lines, and the most parameters."""
  totals, lines, most = collections.Counter(), 0, 0
  for file in files_of(paths):
    if file.suffix == ".py":
      counts = packing(file)
      most = max(most, counts.pop("parameters", 0))
      totals.update(counts)
      lines += len(file.read_text().splitlines())
  names = ("splats", "lambdas", "tuples")
  return {name: 1000 * totals[name] / lines for name in names} | {"parameters": most}


def main(argv: list[str] | None = None) -> int:
  """Prints the tables of some folders, and their worst sentences."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--worst", type=int, default=0, help="number of sentences to print"
  )
  parser.add_argument("paths", nargs="*", default=list(FOLDERS))
  args = parser.parse_args(argv)
  found = [text for file in files_of(args.paths) for text in texts(file)]
  print("| per 100 words | pro-forms | what, whose |\n|---|---|---|")
  for key, (pro, free) in densities(found).items():
    print(f"| {key} | {pro:.1f} | {free:.2f} |")
  print("\n| per 1,000 lines | splats | lambdas | tuples | parameters, at most |")
  print("|---|---|---|---|---|")
  for path in args.paths:
    if any(file.suffix == ".py" for file in files_of([path])):
      row = packed([path])
      rates = [f"{row[name]:.1f}" for name in ("splats", "lambdas", "tuples")]
      print(f"| {path} | {' | '.join(rates)} | {row['parameters']} |")
  for score, line in sorted(_scored(found), reverse=True)[: args.worst]:
    print(f"{score:.2f} {line}")
  return 0


def _scored(found: Iterable[Text]) -> Iterator[tuple[float, str]]:
  for text in found:
    for sentence in text.sentences():
      words = words_of(sentence)
      pro = sum((word in PRO_FORMS) + 2 * (word in FREE) for word in words)
      place = text.file.relative_to(ROOT)
      yield pro / (len(words) + 4), f"{place}:{text.line} ({text.kind}) {sentence}"


if __name__ == "__main__":
  sys.exit(main())
