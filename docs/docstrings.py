"""Converts plain docstrings to reStructuredText."""

import re

_SECTIONS = "(Args|Returns|Raises|Yields|Attributes|Examples?|Notes?):"
# Literal text that looks like markup: a trailing underscore, a bar, a single star.
_MARKUP = re.compile(r"(?<!`)(\*+|\||(?<=\w)_(?=\W|$))(?!`)")


def process(app, what, name, obj, options, lines):
  """Sphinx's `autodoc-process-docstring`: indented formulas become literal blocks."""
  del app, what, name, obj, options
  lines[:] = rewritten(lines)


def rewritten(lines):
  r"""Returns a docstring's lines with explicit markup.

  >>> rewritten(["The distribution is", "", "    q(x) = 1,", "", "see w_."])
  ['The distribution is', '', '::', '', '    q(x) = 1,', '', 'see w\\_.']
  """
  out, inside = [], False
  for number, line in enumerate(lines):
    formula = _is_formula(lines, number)
    if formula and not inside:
      out += ["::", ""]
    inside = formula or (inside and not line.strip())
    out.append(line if formula else _escaped(line))
  return out


def _is_formula(lines, number):
  """Returns whether a line is indented below a blank line, outside of sections."""
  if not lines[number].startswith("  "):
    return False
  while number and lines[number].startswith("  "):
    number -= 1
  return not lines[number].strip()


def _escaped(line):
  # Sections, **arguments and examples need no escapes.
  if re.match(rf"\s*({_SECTIONS}$|\*+\w+:|>>>|\.\.\. )", line):
    return line
  parts = re.split(r"(`[^`]*`)", line)
  parts[::2] = [_MARKUP.sub(r"\\\1", part) for part in parts[::2]]
  return "".join(parts)
