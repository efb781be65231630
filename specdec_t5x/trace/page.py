"""Renders traces as a self-contained HTML file: tokens, random draws and times.

Each iteration is a list of buttons, so a keyboard and a screen reader reach every
token. A token's label has the token's draws and tests; the page shows the selected
label. The time line is figure 5 of Leviathan et al., ICML 2023: draft above target.
"""

import html
import json
import string
from collections.abc import Iterator, Sequence
from importlib import resources

from specdec_t5x.trace import render
from specdec_t5x.trace.recording import Token, Trace, Turn
from specdec_t5x.trace.render import STYLES, visible

_WIDTH = 1000  # The time line's width, in units of the SVG.
_INTRO = """\
A line an iteration, that is, a call of the target. Tab, or the arrow keys, go from
token to token; what it was drawn and tested with is shown below."""


def to_html(traces: Sequence[Trace], title: str = "Speculative decoding") -> str:
  """Returns a page that shows the traces.

  Raises:
    ValueError: if there is no trace.
  """
  if not traces:
    raise ValueError("Expected at least 1 trace, got 0.")
  body = "\n".join(_decode(number, trace) for number, trace in enumerate(traces, 1))
  legend = " ".join(f'<span class="token {kind}">{kind}</span>' for kind in STYLES)
  return framed(title, legend, _INTRO, body, "tokens.js")


def framed(title: str, legend: str, intro: str, body: str, script: str) -> str:
  """Returns a page in the common frame, with a light and a dark theme.

  Args:
    title: the title, plain text.
    legend: the HTML beside the title.
    intro: the HTML of the introduction.
    body: the HTML of the content.
    script: the name of a script file in this folder.
  """
  return string.Template(_resource("page.html")).substitute(
    title=text(title),
    legend=legend,
    intro=intro,
    styles=_styles(),
    body=body,
    script=_resource(script),
  )


def _resource(name: str) -> str:
  return resources.files(__package__).joinpath(name).read_text("utf-8")


def _styles() -> str:
  """Returns the CSS of each kind of token: light colours, and the reverse for dark."""
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
  drafted = [token for turn in trace.turns for token in turn.drafted]
  accepted = sum(token.kind == "accepted" for token in drafted)
  facts = (
    f"{trace.num_tokens} tokens in {len(trace.turns)} calls of the target; "
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
  """Returns an iteration as a tree: each node comes before the node's children."""
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
  """Returns the time bars of draft, target, and plain decoding if timed."""
  bars, height = render.time_bars(trace, _WIDTH)
  times = render.times(trace)
  return f"""<figure><svg class="time" role="img" aria-label="Time line: {times}"
viewBox="-60 0 {_WIDTH + 61} {height}">{"".join(bars)}</svg>
<figcaption>{times}. Each iteration was started by itself, which the compiled loop need
not do; reading the input is in the plain tokens' time alone.</figcaption></figure>"""


def text(plain: str, keep: str = "") -> str:
  """Returns a text as HTML, with unprintable characters replaced except for `keep`."""
  return html.escape("".join(c if c in keep else visible(c) for c in plain))
