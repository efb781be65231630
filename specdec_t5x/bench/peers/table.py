"""A comparison with peers as JSON and as a Markdown table."""

import dataclasses
import importlib
from typing import Any

from specdec_t5x.bench import environment as environment_lib
from specdec_t5x.bench.peers.comparison import Comparison, Row
from specdec_t5x.bench.peers.programs import PROGRAMS, Workload
from specdec_t5x.bench.walltime import Spread

# The last one decides whether Hugging Face adapts its threshold in its own schedule.
PACKAGES = ("jax", "jaxlib", "flax", "torch", "transformers", "scikit-learn")

HEADER = (
  "program",
  "ms a token",
  "tokens/s",
  "times our baseline's speed",
  "our speculation's speed over its",
  "outputs equal to our baseline's",
)

NOTES = """\
All programs decode greedily in float32 at batch 1, in turn in one process. ms a token
and ratios: median of the inputs [quartiles]; ratios are of seconds a token of the same
input, encoder included. tokens/s: all tokens over all seconds. A tie: the outputs part
where the target's logits of the two tokens are equal up to rounding. Hugging Face gets
unpadded inputs, ours and T5X's padded ones. Without a decoder mask, transformers feeds
an encoder-decoder draft the whole output again at each call: see
`specdec_t5x/bench/peers/hugging_face.py`."""


def document(
  work: Workload, found: Comparison, settings: dict[str, Any]
) -> dict[str, Any]:
  """Returns everything that was found, for JSON.

  Args:
    work: what was decoded.
    found: what it took.
    settings: that say where models and inputs came from.
  """
  return {
    "settings": settings,
    "inputs": len(work.inputs),
    "input_length": work.inputs[0].shape[1],
    **{name: getattr(work, name) for name in ("gamma", "max_length", "alpha")},
    "tokens_a_call": found.tokens_a_call,
    "environment": environment(),
    "rows": [dataclasses.asdict(row) for row in found.rows],
    "missing": found.missing,
  }


def markdown(found: Comparison, document: dict[str, Any]) -> str:
  """Returns the table, its notes, the settings and the environment."""
  rows = {row.program: _cells(row) for row in found.rows}
  absent = ("",) * (len(HEADER) - 2)
  rows |= {name: (name, why, *absent) for name, why in found.missing.items()}
  cells = [HEADER, ("---",) * len(HEADER), *(rows[name] for name in PROGRAMS)]
  lines = ["| " + " | ".join(row) + " |" for row in cells]
  kept = ("inputs", "input_length", "gamma", "max_length", "alpha", "tokens_a_call")
  said = {name: document[name] for name in kept} | document["settings"]
  facts = [
    ", ".join(f"{name} {value}" for name, value in part.items() if value is not None)
    for part in (said, document["environment"])
  ]
  return "\n".join([*lines, "", NOTES, "", *(f"- {fact}" for fact in facts), ""])


def environment() -> dict[str, str | None]:
  """Returns versions, the provider of `t5x`, the device and the date."""
  t5x = importlib.import_module("t5x")
  provider = getattr(t5x, "PROVIDER", "upstream T5X")
  found = environment_lib.environment(PACKAGES)
  return found | {"t5x": f"{provider} {t5x.__version__}"}


def _cells(row: Row) -> tuple[str, ...]:
  scaled = [getattr(row.seconds_a_token, f) * 1e3 for f in ("median", "low", "high")]
  same = f"{row.equal} of {len(row.tokens)}"
  if row.gaps:
    same += f", {row.ties} of {len(row.gaps)} others ties"
  return (
    row.program,
    _spread(Spread(*scaled)),
    f"{row.tokens_a_second:.1f}",
    _spread(row.over_baseline),
    _spread(row.ours_over_it),
    same,
  )


def _spread(spread: Spread) -> str:
  return f"{spread.median:.2f} [{spread.low:.2f}, {spread.high:.2f}]"
