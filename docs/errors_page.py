"""Makes docs/errors.md from the cases of tests/errors/cases.toml."""

import pathlib
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
_PAGE = ROOT / "docs" / "errors.md"
_TABLE = ("| mistake | message | fix |", "|---|---|---|")


def to_markdown() -> str:
  """Returns the page: a table for each section, between the beginning and the end."""
  text = (ROOT / "tests" / "errors" / "cases.toml").read_text(encoding="utf-8")
  contents = tomllib.loads(text)
  rows = {}
  section = ""
  for case in contents["case"]:
    section = case.get("section", section)
    row = f"| {case['did']} | `{case['says']}` | {case['fix']} |"
    rows.setdefault(section, []).append(row)
  parts = [contents["begin"]]
  for section, lines in rows.items():
    preface = contents["preface"].get(section)
    parts += [f"## {section}\n", *([preface] if preface else [])]
    parts.append("\n".join((*_TABLE, *lines, "")))
  return "\n".join([*parts, contents["end"]])


if __name__ == "__main__":
  _PAGE.write_text(to_markdown(), encoding="utf-8")
