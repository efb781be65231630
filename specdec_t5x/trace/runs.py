"""One run of `t5x.infer`, or two, as one HTML file: what each sentence took.

A dot a sentence shows where drafts failed, a row each what was read and written. Of two
runs the outputs that differ are marked from the first character on that does.
"""

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_t5x.trace import page
from specdec_t5x.trace.places import ACCEPTED, OWN, RECOVERED

_WIDTH, _HEIGHT, _BORDER = 900, 260, 40  # Of the dots, in their own units.
_KINDS = "target", "draft"  # The colours of the first run and the second.
_PLACES = {OWN: "bonus", ACCEPTED: "accepted", RECOVERED: "recovered"}
_INTRO = """\
A dot, and a row below, is a sentence; names of columns sort. Tokens a call: how many
tokens of the output the target gave a call, 1 without speculation. Alpha: the share of
the tested drafted tokens that the target accepted."""


@dataclasses.dataclass(frozen=True)
class Example:
  """What became of an input.

  Attributes:
    source: the input's text.
    output: the output's text, of several decodes the last one's.
    ids: its tokens.
    tokens: of the output, of several decodes all of them; so the counts below.
    calls: of the target.
    accepted: drafted tokens that stood.
    tried: those, and of each draft the first that did not stand.
    places: whose token stands at each place (`trace.places`); none where a run did not
      keep it.
  """

  source: str
  output: str
  ids: Sequence[int]
  tokens: int
  calls: int
  accepted: float
  tried: float
  places: Sequence[int] = ()

  @property
  def per_call(self) -> float:
    """Tokens a call of the target."""
    return self.tokens / max(self.calls, 1)

  @property
  def alpha(self) -> float | None:
    """The share of tested tokens that stood; None where none was drafted."""
    return self.accepted / self.tried if self.tried else None


def load(folder: str) -> list[Example]:
  """Returns the examples of a finished run, in their order.

  Args:
    folder: its INFER_OUTPUT_DIR.

  Raises:
    ValueError: where it has no file of one finished run, or a line that is none of it.
  """
  files = sorted(pathlib.Path(folder).glob("*.jsonl-00000-of-00001"))
  if len(files) != 1:
    raise ValueError(
      f"{folder}: expected the INFER_OUTPUT_DIR of one finished run of t5x.infer, with "
      f"a file *.jsonl-00000-of-00001, found {len(files)} of them. Join those of "
      "several shards by `python -m specdec_t5x.merge_shards`."
    )
  lines = files[0].read_text(encoding="utf-8").splitlines()
  return [_example(line, f"{files[0]}, line {n}") for n, line in enumerate(lines, 1)]


def _example(line: str, place: str) -> Example:
  total = lambda key: float(np.sum(record["aux"][key]))
  try:
    record = json.loads(line)
    # Of several decodes they come by increasing score.
    several = isinstance(record["prediction"], list)
    best = (lambda x: x[-1]) if several else (lambda x: x)
    return Example(
      source=str(record["inputs"]["inputs_pretokenized"]),
      output=best(record["prediction"]),
      ids=best(record["prediction_tokens"]),
      tokens=int(total("tokens")),
      calls=int(total("target_calls")),
      accepted=total("accepted"),
      tried=total("acceptance_positions"),
      places=record["aux"].get("places", ())[: int(total("tokens"))],
    )
  except (ValueError, KeyError, TypeError, IndexError) as error:
    raise ValueError(
      f"{place}: expected an example as t5x.infer writes it with the statistics of "
      f"specdec_t5x's models, got {line[:80]!r}."
    ) from error


def to_html(runs: Mapping[str, Sequence[Example]]) -> str:
  """Returns a page that shows one run or compares two.

  Args:
    runs: examples by the runs' names.

  Raises:
    ValueError: where runs are not one or two, are empty, or of other inputs.
  """
  examples = [*runs.values()]
  if len(runs) not in (1, 2) or not all(examples):
    raise ValueError(f"Expected one or two runs with examples, got {[*runs]}.")
  sources = [[example.source for example in run] for run in examples]
  if any(each != sources[0] for each in sources):
    raise ValueError(
      f"{' and '.join(runs)} are of other inputs: only runs of the same task and split "
      "can be compared."
    )
  sections = _summary(runs), _dots(examples), _failures(examples), _rows(examples)
  legend = [
    f'<svg class="key" aria-hidden="true"><circle class="{kind}" cx="6" cy="6" r="5"/>'
    f"</svg> {page.text(name)}"
    for name, kind in zip(runs, _KINDS, strict=False)
  ]
  if any(example.places for run in examples for example in run):
    legend += [f'<span class="token {kind}">{kind}</span>' for kind in _PLACES.values()]
  title = " and ".join(runs)
  return page.framed(title, " ".join(legend), _INTRO, "\n".join(sections), "rows.js")


def _summary(runs: Mapping[str, Sequence[Example]]) -> str:
  rows = [_total_row(name, examples) for name, examples in runs.items()]
  heads = "run", "sentences", "tokens", "calls of the target", "tokens a call", "alpha"
  told = ""
  if len(runs) == 2:
    first, second = runs.values()
    same = sum(a.ids == b.ids for a, b in zip(first, second, strict=True))
    told = f"<p>{same} of {len(first)} outputs are the same, token for token.</p>"
  return f"<section>{told}<table>{_heads(heads)}{''.join(rows)}</table></section>"


def _total_row(name: str, examples: Sequence[Example]) -> str:
  total = lambda key: sum(getattr(example, key) for example in examples)
  whole = Example(name, "", (), *map(total, ("tokens", "calls", "accepted", "tried")))
  numbers = len(examples), whole.tokens, whole.calls, whole.per_call, whole.alpha
  return f"<tr>{_cell(name)}{''.join(map(_number, numbers))}</tr>"


def _dots(runs: Sequence[Sequence[Example]]) -> str:
  """Returns tokens a call over the output's length, a dot a sentence."""
  dots = [
    [(e.tokens, e.per_call, f"{e.output}: {e.per_call:.2f}") for e in run]
    for run in runs
  ]
  most = max(2, *(dot[1] for run in dots for dot in run))
  words = "Tokens a call of the target over the output's length, a dot a sentence"
  return _figure(dots, range(int(most) + 1), words)


def _failures(runs: Sequence[Sequence[Example]]) -> str:
  """Returns the share of rejections by place in the output, where runs kept places."""
  kept = [[e.places for e in run] for run in runs]
  places = range(max(len(each) for run in kept for each in run))
  dots = [[dot for place in places if (dot := _share(place, run))] for run in kept]
  words = "Share of drafted tokens that were rejected, over their place in the output"
  return _figure(dots, (0, 0.5, 1), words) if any(dots) else ""


def _share(
  place: int, places: Sequence[Sequence[int]]
) -> tuple[int, float, str] | None:
  """Returns a dot: of the tokens drafted for a place, the share that was rejected."""
  found = [each[place] for each in places if place < len(each)]
  rejected, tried = found.count(RECOVERED), len(found) - found.count(OWN)
  told = f"place {place + 1}: {rejected} of {tried} rejected"
  return (place + 1, rejected / tried, told) if tried else None


def _figure(
  runs: Sequence[Sequence[tuple[int, float, str]]], heights: Sequence[float], words: str
) -> str:
  """Returns dots: x, from 0 on; y, up to the last of the lines' heights; a text."""
  every = [dot for run in runs for dot in run]
  top, longest = max(heights), max(2, *(x for x, _, _ in every))
  top = max(top, *(y for _, y, _ in every))
  across = lambda x: _BORDER + x / longest * (_WIDTH - 2 * _BORDER)
  down = lambda y: _HEIGHT - _BORDER - y / top * (_HEIGHT - 2 * _BORDER)
  dots = [
    f'<circle class="{kind}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3">'
    f"<title>{page.text(told)}</title></circle>"
    for run, kind in zip(runs, _KINDS, strict=False)
    for x, y, told in run
  ]
  lines = [
    f'<line x1="{_BORDER}" x2="{_WIDTH - _BORDER}" y1="{down(y):.1f}" '
    f'y2="{down(y):.1f}"/><text x="8" y="{down(y) + 4:.1f}">{y:g}</text>'
    for y in heights
  ]
  return f"""<figure><svg class="dots" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}"
aria-label="{words}">
{"".join(lines)}{"".join(dots)}
<text x="{_BORDER}" y="{_HEIGHT - 12}">tokens of the output, up to {longest}</text>
</svg><figcaption>{words}.</figcaption>
</figure>"""


def _rows(runs: Sequence[Sequence[Example]]) -> str:
  """Returns a row a sentence, the fewest tokens a call of the last run first."""
  groups = sorted(
    enumerate(zip(*runs, strict=True), 1), key=lambda x: x[1][-1].per_call
  )
  counts = ["tokens", "tokens a call", "alpha"]
  heads = ["number", "input", *["output", *counts] * len(runs)]
  body = "\n".join(f"<tr>{''.join(_row(*group))}</tr>" for group in groups)
  return (
    f'<table class="rows"><thead>{_heads(heads, sorts=True)}</thead>'
    f"<tbody>\n{body}\n</tbody></table>"
  )


def _row(number: int, examples: Sequence[Example]) -> Iterator[str]:
  yield _number(number)
  yield _cell(examples[0].source)
  for example in examples:
    others = (other.output for other in examples if other.ids != example.ids)
    yield _output(example, next(others, None))
    yield from map(_number, (example.tokens, example.per_call, example.alpha))


def _output(example: Example, other: str | None) -> str:
  """Returns a cell; what is unlike the other output's text is marked."""
  text, places = example.output, _strip(example.places)
  if other is None:
    return f"<td>{page.text(text)}{places}</td>"
  pairs = zip(text, other, strict=False)
  same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
  rest = page.text(text[same:]) or "&hellip;"
  return f"<td>{page.text(text[:same])}<mark>{rest}</mark>{places}</td>"


def _strip(places: Sequence[int]) -> str:
  """Returns a square a token: whose it is."""
  if not places:
    return ""
  squares = "".join(f'<i class="{_PLACES[each]}"></i>' for each in places)
  told = f"{places.count(RECOVERED)} of {len(places)} tokens replace a rejected one"
  return f'<div class="strip" role="img" aria-label="{told}">{squares}</div>'


def _heads(names: Sequence[str], sorts: bool = False) -> str:
  inner = (f"<button>{name}</button>" if sorts else name for name in names)
  return f"<tr>{''.join(f'<th scope=col>{each}</th>' for each in inner)}</tr>"


def _cell(text: str) -> str:
  return f"<td>{page.text(text)}</td>"


def _number(value: Any) -> str:
  shown = "" if value is None else f"{value:.2f}" if isinstance(value, float) else value
  return f'<td class="number">{shown}</td>'
