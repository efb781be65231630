"""Traces as one HTML file that needs no other: tokens, draws, and the time they took.

Each iteration is a list of buttons, so that a keyboard and a screen reader get to every
token; what was drawn and tested stands in a token's label and, shown, beside it. The
time line is figure 5 of Leviathan et al., ICML 2023: draft above target.
"""

import html
import json
import string
from collections.abc import Iterator, Sequence
from importlib import resources

from specdec_t5x.trace import render
from specdec_t5x.trace.recording import Token, Trace, Turn
from specdec_t5x.trace.render import STYLES, visible

_WIDTH = 1000  # Of the time line, in its own units.
_INTRO = """\
A line an iteration, that is, a call of the target. Tab, or the arrow keys, go from
token to token; what it was drawn and tested with is shown below."""


def to_html(traces: Sequence[Trace], title: str = "Speculative decoding") -> str:
  """Returns a page that shows the traces.

  Raises:
    ValueError: where there are none.
  """
  if not traces:
    raise ValueError("Expected a trace at least, got none to show.")
  body = "\n".join(_decode(number, trace) for number, trace in enumerate(traces, 1))
  legend = " ".join(f'<span class="token {kind}">{kind}</span>' for kind in STYLES)
  return framed(title, legend, _INTRO, body, "tokens.js")


def framed(title: str, legend: str, intro: str, body: str, script: str) -> str:
  """Returns a page in the frame that all pages here have, light and dark.

  Args:
    title: a text.
    legend: HTML, beside the title.
    intro: what to read first, HTML.
    body: HTML.
    script: the name of a file beside this one.
  """
  read = lambda name: resources.files(__package__).joinpath(name).read_text("utf-8")
  return string.Template(read("page.html")).substitute(
    title=text(title),
    legend=legend,
    intro=intro,
    styles=_styles(),
    body=body,
    script=read(script),
  )


def _styles() -> str:
  """Returns the colours of each kind, on light pages and, inverted in tone, on dark."""
  rule = "{{ color: {ink}; background: {paper}; text-decoration: {line} }}"
  light = [
    f".{kind} {rule.format(ink=s.ink, paper=s.paper, line=s.decoration)}"
    for kind, s in STYLES.items()
  ]
  dark = [
    f':root[data-theme="dark"] .{kind} {{ color: {s.paper}; background: {s.ink} }}'
    for kind, s in STYLES.items()
  ]
  return "\n".join(light + dark)


def _decode(number: int, trace: Trace) -> str:
  turns = "\n".join(_turn(n, turn) for n, turn in enumerate(trace.turns, 1))
  calls, drafted = len(trace.turns), [t for turn in trace.turns for t in turn.drafted]
  accepted = sum(token.kind == "accepted" for token in drafted)
  facts = (
    f"{trace.num_tokens} tokens in {calls} calls of the target; "
    f"{accepted} of {len(drafted)} drafted tokens stand."
  )
  return f"""<section aria-labelledby="input-{number}">
<h2 id="input-{number}">{text(trace.text)}</h2>
<p class="output">{text(trace.output)}</p>
<p>{facts}</p>
<details><summary>Settings</summary><pre>{_settings(trace)}</pre></details>
<ol class="turns">
{turns}
</ol>
{_time_line(trace)}
</section>"""


def _settings(trace: Trace) -> str:
  return text(json.dumps(trace.settings, indent=1), keep="\n")


def _turn(number: int, turn: Turn) -> str:
  """Returns an iteration: a tree of nodes, each followed by its children."""
  nodes = dict(enumerate(turn.drafted, 1))
  return (
    f'<li aria-label="Iteration {number}"><div class="row">'
    f"{_children(0, nodes, turn.own)}</div></li>"
  )


def _children(parent: int, nodes: dict[int, Token], own: Token | None) -> str:
  below = [
    f'<div class="row">{_button(token)}{_children(node, nodes, own)}</div>'
    for node, token in nodes.items()
    if token.parent == parent
  ]
  if own is not None and own.parent == parent:
    below.append(f'<div class="row">{_button(own)}</div>')
  return f'<div class="column">{"".join(below)}</div>' if below else ""


def _button(token: Token) -> str:
  piece = token.piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").strip() or "space"
  facts = list(_facts(token))
  label = text(", ".join([piece, token.kind, *facts]))
  return (
    f'<button class="token {token.kind}" aria-label="{label}">{text(token.piece)}'
    f'<span class="facts" aria-hidden="true">{text("; ".join([token.kind, *facts]))}'
    "</span></button>"
  )


def _facts(token: Token) -> Iterator[str]:
  yield f"p {token.p:.3g}"
  if token.q is not None:
    yield f"q {token.q:.3g}"
  if token.test is not None:
    yield f"tested with u {token.test:.3f}"
  if token.draws:
    yield "drawn with u " + " ".join(f"{u:.3f}" for u in token.draws)


def _time_line(trace: Trace) -> str:
  """Returns the bars of draft and target, and of plain decoding where it was timed."""
  bars, height = render.time_bars(trace, _WIDTH)
  told = render.times(trace)
  return f"""<figure><svg class="time" role="img" aria-label="Time line: {told}"
viewBox="-60 0 {_WIDTH + 61} {height}">{"".join(bars)}</svg>
<figcaption>{told}. Each iteration was started by itself, which the compiled loop need
not do; reading the input is in the plain tokens' time alone.</figcaption></figure>"""


def text(plain: str, keep: str = "") -> str:
  """Returns a text as HTML, characters that do not print made visible."""
  return html.escape("".join(c if c in keep else visible(c) for c in plain))
