"""Shows the cost of each sentence in one or two runs of `t5x.infer`, as an HTML file.

Dots show tokens per call and rejections. Rows show input, output and counts, with marks
from the first different character of two runs' outputs on.
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

_WIDTH, _HEIGHT, _BORDER = 900, 260, 40  # Sizes of a figure, in units of the SVG.
_KINDS = "target", "draft"  # CSS classes for the colours of the first and second run.
_PLACES = {OWN: "bonus", ACCEPTED: "accepted", RECOVERED: "recovered"}
_INTRO = """\
A dot, and a row below, is a sentence; names of columns sort. Tokens a call: how many
tokens of the output the target gave a call, 1 without speculation. Alpha: the share of
the tested drafted tokens that the target accepted."""


@dataclasses.dataclass(frozen=True)
class Example:
  """An input with the output and counts. Counts sum over several decodes.

  Attributes:
    source: the input's text.
    output: the output's text; the last output of several decodes.
    ids: the output's tokens.
    tokens: the number of output tokens.
    calls: the number of calls of the target.
    accepted: the number of accepted drafted tokens.
    tried: the number of tested tokens, accepted or the first rejected of a draft.
    places: the origin of each output token (`trace.places`); empty if not recorded.
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
    """The number of tokens per call of the target."""
    return self.tokens / max(self.calls, 1)

  @property
  def alpha(self) -> float | None:
    """The acceptance rate of tested tokens; None if no token was tested."""
    return self.accepted / self.tried if self.tried else None


def load(folder: str) -> list[Example]:
  """Returns the examples of a finished run, in the order of the run's file.

  Args:
    folder: the run's INFER_OUTPUT_DIR.

  Raises:
    ValueError: if the folder does not have exactly one file of a finished run, or if a
      line of the file is no example.
  """
  files = sorted(pathlib.Path(folder).glob("*.jsonl-00000-of-00001"))
  if len(files) != 1:
    raise ValueError(
      f"{folder}: expected the INFER_OUTPUT_DIR of one finished run of t5x.infer, with "
      f"one file *.jsonl-00000-of-00001, found {len(files)} files. Join the files of "
      "several shards as in docs/how-to/many_devices.md."
    )
  lines = files[0].read_text(encoding="utf-8").splitlines()
  return [_example(line, f"{files[0]}, line {n}") for n, line in enumerate(lines, 1)]


def _example(line: str, place: str) -> Example:
  try:
    record = json.loads(line)
    statistics = record["aux"]
    output = record["prediction"]
    ids = record["prediction_tokens"]
    if isinstance(output, list):
      # Several decodes are sorted by increasing score.
      output = output[-1]
      ids = ids[-1]
    tokens = int(_total(statistics, "tokens"))
    return Example(
      source=str(record["inputs"]["inputs_pretokenized"]),
      output=output,
      ids=ids,
      tokens=tokens,
      calls=int(_total(statistics, "target_calls")),
      accepted=_total(statistics, "accepted"),
      tried=_total(statistics, "acceptance_positions"),
      places=statistics.get("places", ())[:tokens],
    )
  except (ValueError, KeyError, TypeError, IndexError) as error:
    raise ValueError(
      f"{place}: expected an example written by t5x.infer with the statistics of "
      f"specdec_t5x's models, got {line[:80]!r}."
    ) from error


def _total(statistics: Mapping[str, Any], key: str) -> float:
  return float(np.sum(statistics[key]))


def to_html(runs: Mapping[str, Sequence[Example]]) -> str:
  """Returns a page that shows a run or compares two runs.

  Args:
    runs: examples by the runs' names.

  Raises:
    ValueError: if the runs are not one or two, are empty, or have different inputs.
  """
  examples = [*runs.values()]
  if len(runs) not in (1, 2) or not all(examples):
    raise ValueError(f"Expected one or two runs with examples, got {[*runs]}.")
  sources = [[example.source for example in run] for run in examples]
  if any(other != sources[0] for other in sources):
    raise ValueError(
      f"{' and '.join(runs)} have different inputs. Compare runs of one task and one "
      "split."
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
  comparison = ""
  if len(runs) == 2:
    first, second = runs.values()
    same = sum(a.ids == b.ids for a, b in zip(first, second, strict=True))
    comparison = f"<p>{same} of {len(first)} outputs are the same, token for token.</p>"
  return f"<section>{comparison}<table>{_heads(heads)}{''.join(rows)}</table></section>"


def _total_row(name: str, examples: Sequence[Example]) -> str:
  tokens = sum(example.tokens for example in examples)
  calls = sum(example.calls for example in examples)
  accepted = sum(example.accepted for example in examples)
  tried = sum(example.tried for example in examples)
  total = Example(name, "", (), tokens, calls, accepted, tried)
  numbers = len(examples), tokens, calls, total.per_call, total.alpha
  return f"<tr>{_cell(name)}{''.join(map(_number, numbers))}</tr>"


def _dots(runs: Sequence[Sequence[Example]]) -> str:
  """Returns a figure of tokens per call over output length, a dot per sentence."""
  dots = [
    [(e.tokens, e.per_call, f"{e.output}: {e.per_call:.2f}") for e in run]
    for run in runs
  ]
  most = max(2, *(dot[1] for run in dots for dot in run))
  words = "Tokens a call of the target over the output's length, a dot a sentence"
  return _figure(dots, range(int(most) + 1), words)


def _failures(runs: Sequence[Sequence[Example]]) -> str:
  """Returns a figure of the rejections by place, or "" without recorded places."""
  recorded = [[e.places for e in run] for run in runs]
  places = range(max(len(example) for run in recorded for example in run))
  dots = [[dot for place in places if (dot := _share(place, run))] for run in recorded]
  words = "Share of drafted tokens that were rejected, over their place in the output"
  return _figure(dots, (0, 0.5, 1), words) if any(dots) else ""


def _share(
  place: int, places: Sequence[Sequence[int]]
) -> tuple[int, float, str] | None:
  """Returns a dot for a place: the share of drafted tokens that were rejected."""
  origins = [example[place] for example in places if place < len(example)]
  rejected = origins.count(RECOVERED)
  tried = len(origins) - origins.count(OWN)
  label = f"place {place + 1}: {rejected} of {tried} rejected"
  return (place + 1, rejected / tried, label) if tried else None


def _figure(
  runs: Sequence[Sequence[tuple[int, float, str]]], heights: Sequence[float], words: str
) -> str:
  """Returns a plot of dots (x, y, label), with horizontal lines and a caption."""
  dots = [dot for run in runs for dot in run]
  longest = max(2, *(x for x, _, _ in dots))
  top = max(*heights, *(y for _, y, _ in dots))

  def across(x):
    return _BORDER + x / longest * (_WIDTH - 2 * _BORDER)

  def down(y):
    return _HEIGHT - _BORDER - y / top * (_HEIGHT - 2 * _BORDER)

  circles = [
    f'<circle class="{kind}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3">'
    f"<title>{page.text(label)}</title></circle>"
    for run, kind in zip(runs, _KINDS, strict=False)
    for x, y, label in run
  ]
  lines = [
    f'<line x1="{_BORDER}" x2="{_WIDTH - _BORDER}" y1="{down(y):.1f}" '
    f'y2="{down(y):.1f}"/><text x="8" y="{down(y) + 4:.1f}">{y:g}</text>'
    for y in heights
  ]
  return f"""<figure><svg class="dots" role="img" viewBox="0 0 {_WIDTH} {_HEIGHT}"
aria-label="{words}">
{"".join(lines)}{"".join(circles)}
<text x="{_BORDER}" y="{_HEIGHT - 12}">tokens of the output, up to {longest}</text>
</svg><figcaption>{words}.</figcaption>
</figure>"""


def _rows(runs: Sequence[Sequence[Example]]) -> str:
  """Returns a row per sentence, sorted by the last run's tokens per call."""
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
  """Returns a cell, with marks from the first difference to the other output on."""
  text = example.output
  places = _strip(example.places)
  if other is None:
    return f"<td>{page.text(text)}{places}</td>"
  pairs = zip(text, other, strict=False)
  same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
  marked = page.text(text[same:]) or "&hellip;"
  return f"<td>{page.text(text[:same])}<mark>{marked}</mark>{places}</td>"


def _strip(places: Sequence[int]) -> str:
  """Returns a square per token, coloured by the token's origin."""
  if not places:
    return ""
  squares = "".join(f'<i class="{_PLACES[origin]}"></i>' for origin in places)
  label = f"{places.count(RECOVERED)} of {len(places)} tokens replace a rejected one"
  return f'<div class="strip" role="img" aria-label="{label}">{squares}</div>'


def _heads(names: Sequence[str], sorts: bool = False) -> str:
  inner = (f"<button>{name}</button>" if sorts else name for name in names)
  return f"<tr>{''.join(f'<th scope=col>{name}</th>' for name in inner)}</tr>"


def _cell(text: str) -> str:
  return f"<td>{page.text(text)}</td>"


def _number(value: Any) -> str:
  shown = "" if value is None else f"{value:.2f}" if isinstance(value, float) else value
  return f'<td class="number">{shown}</td>'
