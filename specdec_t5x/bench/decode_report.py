"""A benchmark (`specdec_t5x.bench.decode`) as JSON and as Markdown."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from specdec_t5x.bench import costs
from specdec_t5x.bench.decode import Bench
from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.walltime import Spread, spread

PARTS = ("draft", "scoring", "verification")


def measure(bench: Bench, alphas: Sequence[float], runs: int) -> dict[str, Any]:
  """Returns everything that is measured, for JSON: times in ms, sizes in bytes."""
  seconds = bench.part_seconds(runs)
  floor, read = bench.floor_seconds(runs)
  parts = {name: _asdict(spread(1e3 * each)) for name, each in seconds.items()}
  rest = seconds["iteration"] - sum(seconds[name] for name in PARTS)
  medians = costs.medians(seconds, bench.job.gamma)
  token, block = medians["token"], medians["scoring"]
  return {
    "job": dataclasses.asdict(bench.job),
    "environment": environment(),
    "runs": runs,
    "ms": {**parts, "rest": _asdict(spread(1e3 * rest))},
    "iteration_over_parts": _ratio(seconds, "iteration", "draft", "scoring"),
    "block_over_token": _ratio(seconds, "scoring", "token"),
    "c": medians["draft"] / bench.job.gamma / token,
    "read_bytes": read,
    "floor_ms": 1e3 * floor.median,
    "floor_over_token": floor.median / token,
    "floor_over_block": floor.median / block,
    "compilation": bench.compilation(),
    "speedups": [
      dataclasses.asdict(found) for found in bench.speedups(alphas, runs, medians)
    ],
  }


def markdown(found: dict[str, Any]) -> str:
  """Returns the tables of `measure`'s result."""
  compilation = found["compilation"]
  held = compilation["weights"] + compilation["caches"]
  facts = {
    "iteration / (draft + scoring)": _spread(found["iteration_over_parts"]),
    "block / one token": _spread(found["block_over_token"]),
    "c": f"{found['c']:.3f}",
    "reading a step's weights": (
      f"{found['floor_ms']:.2f} ms for {found['read_bytes'] / 1e6:.0f} MB: "
      f"{found['floor_over_token']:.0%} of a token's time, "
      f"{found['floor_over_block']:.0%} of a block's"
    ),
    "peak memory / (weights + caches)": f"{compilation['peak'] / held:.3f}",
    "compiling": f"{compilation['seconds']:.1f} s",
  }
  return "\n".join(
    [
      _table(("part", "ms"), [(k, _spread(v)) for k, v in found["ms"].items()]),
      "",
      _table(("", ""), facts.items()),
      "",
      _table(
        (
          "alpha",
          "as it came out",
          "tokens a call",
          "speed-up",
          "Theorem 3.8",
          "with the block's cost",
          "identical",
        ),
        [_speedup_row(row) for row in found["speedups"]],
      ),
      "",
      "Random weights, draft by an oracle that proposes the target's own token with",
      "probability alpha after running the draft network; greedy, nothing ends early.",
      "Parts: median [quartiles] of the runs, a repetition, from two loop lengths.",
      "Speed-up: whole calls, encoder included, plain and speculative in turn.",
      "",
      *(_line(found[name]) for name in ("job", "environment")),
      "",
    ]
  )


def _speedup_row(row):
  return (
    f"{row['wanted']:g}",
    f"{row['alpha']:.3f}",
    f"{row['tokens_per_call']:.2f}",
    _spread(row["speedup"]),
    f"{row['theorem']:.2f}",
    f"{row['with_block']:.2f}",
    f"{row['identical']} of {row['runs']}",
  )


def _ratio(seconds, name, *others):
  return _asdict(spread(seconds[name] / sum(seconds[other] for other in others)))


def _asdict(value: Spread) -> dict[str, float]:
  return dataclasses.asdict(value)


def _spread(value):
  return f"{value['median']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def _table(header, rows):
  rows = [header, ["---"] * len(header), *rows]
  return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _line(facts):
  return "- " + ", ".join(f"{k} {v}" for k, v in facts.items() if v is not None)
