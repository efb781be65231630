"""Draws a trace with terminal colours, in plain characters, or as an SVG image.

Each iteration is a line. The colours follow Leviathan et al., ICML 2023, figure 1, with
two additions: tokens after the rejected token are dim, and the bonus token is cyan.
"""

import dataclasses
import string
import unicodedata
from collections.abc import Iterable, Sequence
from importlib import resources
from xml.sax.saxutils import escape, quoteattr

from specdec_t5x.trace.recording import Trace, Turn


@dataclasses.dataclass(frozen=True)
class Style:
  """The appearance of a kind of token.

  Attributes:
    ansi: terminal attributes.
    marks: enclosing marks, for output without colours.
    ink: text colour in an image.
    paper: background colour in an image.
    decoration: text decoration in an image.
  """

  ansi: str
  marks: tuple[str, str]
  ink: str
  paper: str
  decoration: str = "none"


STYLES = {
  "accepted": Style("32", ("", ""), "#116329", "#dafbe1"),
  "rejected": Style("31;9", ("[", "]"), "#a40e26", "#ffe5e2", "line-through"),
  "discarded": Style("2", ("(", ")"), "#59636e", "#f3f4f6"),
  "recovered": Style("34", ("{", "}"), "#0a3fa8", "#d6e4ff"),
  "bonus": Style("36", ("+", ""), "#05606b", "#c9f4f4"),
}

# Pixels of an image: a character, a line, the gap around tokens, the border.
_CHARACTER, _LINE, _GAP, _BORDER = 8.4, 26, 5, 18
_NUMBER_COLUMNS = 4
# The time line: a bar's height, the distance of bars, and the colours.
_BAR, _ROW = 16, 22
_INKS = {"draft": "#bf8700", "target": "#0a3fa8", "plain": "#8c959f"}

Span = tuple[str, str]  # The kind and the piece of a token.


def to_ansi(turns: Sequence[Turn]) -> str:
  """Returns the trace with a terminal's colours, after the legend."""
  return _to_text(turns, lambda kind, piece: f"\033[{STYLES[kind].ansi}m{piece}\033[0m")


def to_plain(turns: Sequence[Turn]) -> str:
  """Returns the trace with marks instead of colours, after the legend."""
  return _to_text(turns, lambda kind, piece: piece.join(STYLES[kind].marks))


def to_svg(trace: Trace, title: str) -> str:
  """Returns a self-contained SVG image with tokens above times.

  The image has a white background, so it looks the same on light and dark pages.
  """
  title = visible(title)
  turns = trace.turns
  indent = _BORDER + _NUMBER_COLUMNS * _CHARACTER
  lines = [_legend(), *map(_spans, turns)]
  starts = [_BORDER] + [indent] * len(turns)
  tops = [_BORDER + _LINE * (1.25 + number) for number in range(len(lines))]
  # A quarter of a line separates the tokens from the legend.
  tops[1:] = [top + _LINE / 4 for top in tops[1:]]
  body = [_text(_BORDER, _BORDER, title, 'class="title"')]
  width = _BORDER + _columns(title) * _CHARACTER
  for number, (spans, left, top) in enumerate(zip(lines, starts, tops, strict=True)):
    if number:
      body.append(_text(_BORDER, top, str(number), 'class="number"'))
    for kind, piece in spans:
      body += _token(kind, piece, left, top)
      left += _token_width(piece) + _GAP
    width = max(width, left - _GAP)
  top = tops[-1] + 1.5 * _LINE
  left = _BORDER + 7 * _CHARACTER
  width = max(width, left + _columns(times(trace)) * _CHARACTER)
  bars, height = time_bars(trace, width - left)
  body += [f'<g transform="translate({left:.1f} {top:.1f})">', *bars, "</g>"]
  body.append(_text(left, top + height, times(trace), 'class="number"'))
  return _sheet(body, title, width + _BORDER, top + height + _LINE + _BORDER - _GAP)


def times(trace: Trace) -> str:
  """Returns the time of a decode with speculation, and without speculation if timed."""
  total = sum(turn.draft_seconds + turn.target_seconds for turn in trace.turns)
  text = f"{1000 * total:.1f} ms with speculation"
  if trace.plain_seconds:
    text += f", {1000 * trace.plain_seconds * trace.num_tokens:.1f} ms without"
  return text


def time_bars(trace: Trace, width: float) -> tuple[list[str], int]:
  """Returns figure 5 of the paper as SVG: draft above target above plain decoding.

  Args:
    trace: the decode.
    width: the width of the longest row. Row names are left of 0.

  Returns:
    The SVG elements, and their height.
  """
  spans = {"draft": [], "target": []}
  now = 0.0
  for number, turn in enumerate(trace.turns, 1):
    for name, row in spans.items():
      seconds = getattr(turn, f"{name}_seconds")
      row.append((now, seconds, f"Iteration {number}, {name}"))
      now += seconds
  if step := trace.plain_seconds:
    tokens = range(trace.num_tokens)
    spans["plain"] = [(n * step, step, "A token of plain decoding") for n in tokens]
  scale = width / (max(now, (step or 0.0) * trace.num_tokens) or 1.0)
  elements = []
  for number, (name, row) in enumerate(spans.items()):
    top = _ROW * number
    elements.append(f'<text x="-8" y="{top + 12}" text-anchor="end">{name}</text>')
    elements += [
      f'<rect class="{name}" x="{begin * scale:.2f}" y="{top}" '
      f'width="{max(seconds * scale - 0.6, 0.2):.2f}" height="{_BAR}">'
      f"<title>{label}: {1000 * seconds:.2f} ms</title></rect>"
      for begin, seconds, label in row
    ]
  return elements, _ROW * len(spans)


def _spans(turn: Turn) -> list[Span]:
  # The order of kinds puts the accepted path of a tree first.
  order = list(STYLES).index
  drafted = sorted(turn.drafted, key=lambda token: order(token.kind))
  own_tokens = [turn.own] if turn.own else []
  return [(token.kind, token.piece) for token in (*drafted, *own_tokens)]


def _legend() -> list[Span]:
  return [(kind, kind) for kind in STYLES]


def _to_text(turns, mark) -> str:
  def show(spans):
    return " ".join(mark(kind, visible(piece)) for kind, piece in spans)

  lines = [f"{n:>3}  {show(_spans(turn))}" for n, turn in enumerate(turns, start=1)]
  return "\n".join([show(_legend()), *lines]) + "\n"


def visible(text: str) -> str:
  """Replaces unprintable characters, which could break a line, a terminal or XML."""
  return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _columns(text: str) -> int:
  """Returns the number of columns of a text in a monospaced font."""
  wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
  return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _token_width(piece: str) -> float:
  return _columns(visible(piece)) * _CHARACTER + 2 * _GAP


def _token(kind: str, piece: str, left: float, top: float) -> list[str]:
  box = (
    f'<rect x="{left:.1f}" y="{top:.1f}" width="{_token_width(piece):.1f}" '
    f'height="{_LINE - _GAP}" rx="4" fill="{STYLES[kind].paper}"/>'
  )
  return [box, _text(left + _GAP, top, visible(piece), f'class="{kind}"')]


def _text(left: float, top: float, text: str, attributes: str) -> str:
  # With `textLength` the text fits the boxes in any font of the reader's machine.
  length = f'textLength="{_columns(text) * _CHARACTER:.1f}"'
  baseline = top + (_LINE - _GAP) * 0.7
  return (
    f'<text x="{left:.1f}" y="{baseline:.1f}" {length} lengthAdjust="spacingAndGlyphs" '
    f"{attributes}>{escape(text)}</text>"
  )


def _sheet(body: Iterable[str], title: str, width: float, height: float) -> str:
  inks = [
    f".{kind} {{ fill: {style.ink}; text-decoration: {style.decoration} }}"
    for kind, style in STYLES.items()
  ] + [f".{name} {{ fill: {ink} }}" for name, ink in _INKS.items()]
  sheet = resources.files(__package__).joinpath("sheet.svg").read_text("utf-8")
  return string.Template(sheet).substitute(
    title=escape(title),
    label=quoteattr(title),
    width=f"{width:.0f}",
    height=f"{height:.0f}",
    inner_width=f"{width - 1:.1f}",
    inner_height=f"{height - 1:.1f}",
    inks="\n".join(inks),
    body="\n".join(body),
  )
