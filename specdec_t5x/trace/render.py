"""Draws traces with terminal colours, in plain characters, as an SVG image or as HTML.

Each iteration is a line. The colours follow Leviathan et al., ICML 2023, figure 1, with
two additions: tokens after the rejected token are dim, and the bonus token is cyan.
The time line is figure 5 of the paper.
"""

import textwrap
import unicodedata
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from specdec_t5x.trace.recording import Token, Trace, Turn

# Of each kind of token: terminal attributes, marks for output without colours, and the
# ink and paper of an image.
STYLES = {
  "accepted": ("32", ("", ""), "#116329", "#dafbe1"),
  "rejected": ("31;9", ("[", "]"), "#a40e26", "#ffe5e2"),
  "discarded": ("2", ("(", ")"), "#59636e", "#f3f4f6"),
  "recovered": ("34", ("{", "}"), "#0a3fa8", "#d6e4ff"),
  "bonus": ("36", ("+", ""), "#05606b", "#c9f4f4"),
}
_INKS = {"draft": "#bf8700", "target": "#0a3fa8", "plain": "#8c959f"}
# Pixels: a character, a line, the gap around tokens, the border; a bar, a row of bars.
_CHARACTER, _LINE, _GAP, _BORDER, _BAR, _ROW = 8.4, 26, 5, 18, 16, 22


def to_text(turns: Sequence[Turn], colours: bool = False) -> str:
  """Returns the trace with a terminal's colours or with marks, after the legend."""

  def show(token):
    ansi, marks, *_ = STYLES[token.kind]
    piece = visible(token.piece)
    return f"\033[{ansi}m{piece}\033[0m" if colours else piece.join(marks)

  lines = [" ".join(show(Token(kind, kind, 0.0)) for kind in STYLES)]
  for number, turn in enumerate(turns, 1):
    lines.append(f"{number:>3}  {' '.join(map(show, _in_order(turn)))}")
  return "\n".join(lines) + "\n"


def to_html(traces: Sequence[Trace]) -> str:
  """Returns a page for a browser, without other files: an image per trace."""
  images = "\n".join(map(to_svg, traces))
  return f"""\
<!doctype html>
<meta charset="utf-8">
<title>Speculative decoding</title>
<p>A line is an iteration, with one call of the target. Point at a token or a bar for
its probabilities, random draws and times.</p>
{images}
"""


def to_svg(trace: Trace) -> str:
  """Returns a self-contained SVG image with tokens above times.

  The image has a white background, so it looks the same on light and dark pages.
  Browsers show each token's probabilities and uniforms.
  """
  title = textwrap.shorten(visible(trace.text), 90, placeholder=" ...")
  body = [_text(_BORDER, _BORDER, title, "title")]
  width = _BORDER + _columns(title) * _CHARACTER
  legend = [Token(kind, kind, 0.0) for kind in STYLES]
  for number, tokens in enumerate([legend, *map(_in_order, trace.turns)]):
    top = _BORDER + _LINE * (1.25 + number)
    left = _BORDER
    if number:
      top += _LINE / 4  # Separates the tokens from the legend.
      left += 4 * _CHARACTER
      body.append(_text(_BORDER, top, str(number), "number"))
    for token in tokens:
      piece = visible(token.piece)
      size = _columns(piece) * _CHARACTER + 2 * _GAP
      # The legend has no numbers.
      numbers = {"p": token.p, "q": token.q, "tested with u": token.test}
      shown = numbers.items() if number else ()
      facts = [f"{name} {x:.3g}" for name, x in shown if x is not None]
      facts += [f"drawn with u {u:.3g}" for u in token.draws]
      body.append(
        f"<g><title>{', '.join([token.kind, *facts])}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{size:.1f}" '
        f'height="{_LINE - _GAP}" rx="4" fill="{STYLES[token.kind][3]}"/>\n'
        f"{_text(left + _GAP, top, piece, token.kind)}</g>"
      )
      left += size + _GAP
    width = max(width, left - _GAP)
  top += 1.5 * _LINE
  left = _BORDER + 7 * _CHARACTER
  total = sum(turn.draft_seconds + turn.target_seconds for turn in trace.turns)
  plain = trace.plain_seconds * trace.num_tokens
  times = f"{1000 * total:.1f} ms with speculation, {1000 * plain:.1f} ms without"
  width = max(width, left + _columns(times) * _CHARACTER)
  bars = _bars(trace, (width - left) / (max(total, plain) or 1.0))
  body += [f'<g transform="translate({left:.1f} {top:.1f})">', *bars, "</g>"]
  top += 3 * _ROW
  body.append(_text(left, top, times, "number"))
  width += _BORDER
  height = top + _LINE + _BORDER - _GAP
  inks = {kind: style[2] for kind, style in STYLES.items()} | _INKS
  inks["rejected"] += "; text-decoration: line-through"
  inks = "\n".join(f".{name} {{ fill: {ink} }}" for name, ink in inks.items())
  lines = "\n".join(body)
  return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" \
viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label={quoteattr(title)}>
<title>{escape(title)}</title>
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace; \
white-space: pre }}
.title {{ fill: #1f2328; font-weight: bold }}
.number {{ fill: #6e7781 }}
{inks}
</style>
<rect x="0.5" y="0.5" width="{width - 1:.1f}" height="{height - 1:.1f}" rx="8" \
fill="#ffffff" stroke="#d0d7de"/>
{lines}
</svg>
"""


def _bars(trace: Trace, scale: float) -> list[str]:
  """Returns the time bars: draft above target above plain decoding."""
  spans = {"draft": [], "target": []}
  now = 0.0
  for turn in trace.turns:
    for name, row in spans.items():
      seconds = getattr(turn, f"{name}_seconds")
      row.append((now, seconds))
      now += seconds
  step = trace.plain_seconds
  spans["plain"] = [(n * step, step) for n in range(trace.num_tokens)]
  elements = []
  for number, (name, row) in enumerate(spans.items()):
    top = _ROW * number
    elements.append(f'<text x="-8" y="{top + 12}" text-anchor="end">{name}</text>')
    elements += [
      f'<rect class="{name}" x="{begin * scale:.2f}" y="{top}" '
      f'width="{max(seconds * scale - 0.6, 0.2):.2f}" height="{_BAR}">'
      f"<title>{1000 * seconds:.2f} ms</title></rect>"
      for begin, seconds in row
    ]
  return elements


def _in_order(turn: Turn) -> list[Token]:
  """Returns the tokens with the accepted path of a tree first, the target's last."""
  order = list(STYLES).index
  drafted = sorted(turn.drafted, key=lambda token: order(token.kind))
  return [*drafted, *([turn.own] if turn.own else [])]


def visible(text: str) -> str:
  """Replaces unprintable characters, which could break a line, a terminal or XML."""
  return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _columns(text: str) -> int:
  """Returns the number of columns of a text in a monospaced font."""
  wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
  return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _text(left: float, top: float, text: str, kind: str) -> str:
  # With `textLength` the text fits the boxes in any font of the reader's machine.
  length = f'textLength="{_columns(text) * _CHARACTER:.1f}"'
  baseline = top + (_LINE - _GAP) * 0.7
  return (
    f'<text x="{left:.1f}" y="{baseline:.1f}" {length} lengthAdjust="spacingAndGlyphs" '
    f'class="{kind}">{escape(text)}</text>'
  )
