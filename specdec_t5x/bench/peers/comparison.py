"""What the programs of this room take on the same inputs, and where outputs differ.

The unit of time is seconds a token of one input at batch 1, encoder included.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench.peers.programs import (
  BASELINE,
  OURS,
  PROGRAMS,
  Workload,
  items,
  programs,
)
from specdec_t5x.bench.walltime import Spread, Timed, alternate, median_ratio
from specdec_t5x.decoding.state import Decoded
from specdec_t5x.diagnose.divergence import first_difference

GapFn = Callable[[int, Sequence[int], int, Sequence[int]], tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Row:
  """One program's time and outputs.

  Attributes:
    program: its name.
    seconds_a_token: median of the inputs.
    tokens_a_second: all tokens over all seconds.
    over_baseline: our baseline's seconds a token over this program's, of each input.
    ours_over_it: this program's seconds a token over our speculation's.
    equal: how many outputs are our baseline's, token for token.
    ties: how many of the others part from it where the two tokens' logits are equal up
      to rounding.
    gaps: of the outputs that differ, by number: the difference of those logits.
    seconds: of each input.
    tokens: of each output.
  """

  program: str
  seconds_a_token: Spread
  tokens_a_second: float
  over_baseline: Spread
  ours_over_it: Spread
  equal: int
  ties: int
  gaps: dict[int, float]
  seconds: list[float]
  tokens: list[int]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All rows, and what is missing and why.

  Attributes:
    rows: of the programs that ran.
    missing: why each other program did not.
    tokens_a_call: output tokens a call of the target, of our speculation.
  """

  rows: tuple[Row, ...]
  missing: dict[str, str]
  tokens_a_call: float


def compare(work: Workload) -> Comparison:
  """Runs every program that there is on every input, in turn.

  Raises:
    ValueError: as for `programs`.
  """
  present, missing = programs(work)
  timed = alternate(present, items(work))
  outputs = {
    name: [_until_end(result, work.eos_id) for result in found.results]
    for name, found in timed.items()
  }
  gap = gap_of(work)
  rows = [_row(name, timed, outputs, gap) for name in PROGRAMS if name in timed]
  counts = [result.statistics for result in timed[OURS].results]
  emitted, calls = (
    sum(int(getattr(count, field)[0]) for count in counts)
    for field in ("emitted", "target_calls")
  )
  return Comparison(tuple(rows), missing, emitted / calls)


def _until_end(result: Any, eos_id: int) -> list[int]:
  tokens = result.tokens if isinstance(result, Decoded) else result
  tokens = np.asarray(tokens)[0].tolist()
  return tokens[: tokens.index(eos_id) + 1] if eos_id in tokens else tokens


def gap_of(work: Workload) -> GapFn:
  """Returns how far apart the target's logits of two tokens are at a position.

  A function of an input's number, the output, the position in it and the two tokens.
  It returns the gap, and how large it may be to be rounding: half of the digits of the
  largest logit. A peer with a bug has no reason to part at a gap that small.
  """
  network, params = work.target.network, jax.device_put(work.target.params)

  @jax.jit
  def whole(params, inputs, fed):
    return network.apply(
      {"params": params}, inputs, fed, jnp.ones_like(fed), enable_dropout=False
    )

  def gap(number, output, position, tokens):
    fed = np.zeros((1, work.max_length), np.int32)
    fed[0, 1 : len(output)] = output[:-1]
    logits = whole(params, jnp.asarray(work.inputs[number]), fed)[0, position]
    logits = np.asarray(logits)
    limit = np.sqrt(np.finfo(np.float32).eps) * np.abs(logits).max()
    return float(abs(logits[tokens[0]] - logits[tokens[1]])), float(limit)

  return gap


def _row(name, timed: dict[str, Timed], outputs, gap) -> Row:
  gaps, ties = {}, 0
  for number, pair in enumerate(zip(outputs[BASELINE], outputs[name], strict=True)):
    position = first_difference(*pair)
    if position is not None:
      tokens = [output[position] for output in pair]
      gaps[number], limit = gap(number, pair[0], position, tokens)
      ties += gaps[number] <= limit
  lengths = [len(output) for output in outputs[name]]
  pace = lambda name: timed[name].seconds / [len(output) for output in outputs[name]]
  seconds = timed[name].seconds
  return Row(
    program=name,
    seconds_a_token=median_ratio(seconds, lengths),
    tokens_a_second=float(sum(lengths) / seconds.sum()),
    over_baseline=median_ratio(pace(BASELINE), pace(name)),
    ours_over_it=median_ratio(pace(name), pace(OURS)),
    equal=len(lengths) - len(gaps),
    ties=ties,
    gaps=gaps,
    seconds=seconds.tolist(),
    tokens=lengths,
  )
