"""What the programs of this folder take on the same inputs, and where outputs differ.

The unit of time is seconds a token of one input at batch 1, encoder included.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench.measured import Measured, Setting, beside
from specdec_t5x.bench.peers.programs import (
  BASELINE,
  OURS,
  PROGRAMS,
  Workload,
  items,
  programs,
)
from specdec_t5x.bench.timed import Timed, alternate, median_ratio
from specdec_t5x.diagnose.divergence import first_difference

GapFn = Callable[[int, Sequence[int], int, Sequence[int]], tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Comparison:
  """All rows, and what is missing and why.

  Attributes:
    rows: of the programs that ran: "ms_a_token", median of the inputs;
      "tokens_a_second", all tokens over all seconds; "over_baseline", our baseline's
      seconds a token over this program's, of each input, and "ours_over_it", this
      program's over our speculation's; "equal", how many outputs are our baseline's,
      token for token; "ties", how many of the others part from it where the two tokens'
      logits are equal up to rounding, and "gaps", the difference of those logits by
      input; "seconds" of each input and "tokens" of each output.
    missing: why each other program did not.
    tokens_a_call: output tokens a call of the target, of our speculation.
  """

  rows: tuple[dict[str, Any], ...]
  missing: dict[str, str]
  tokens_a_call: float


def compare(work: Workload) -> Comparison:
  """Runs every program that there is on every input, in turn.

  Raises:
    ValueError: as for `programs`.
  """
  present, missing = programs(work)
  timed, gap = alternate(present, items(work)), gap_of(work)
  cells = beside(timed, Setting(work.gamma, 0.0), BASELINE)
  rows = [_row(name, timed, cells, gap) for name in PROGRAMS if name in timed]
  return Comparison(tuple(rows), missing, cells[OURS].tokens_per_call.value)


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


def _row(name, timed: dict[str, Timed], cells: dict[str, Measured], gap):
  cell, lengths = cells[name], cells[name].columns["emitted"]
  gaps, ties = {}, 0
  outputs = map(_outputs, (timed[BASELINE], timed[name]))
  for number, pair in enumerate(zip(*outputs, strict=True)):
    position = first_difference(*pair)
    if position is not None:
      tokens = [output[position] for output in pair]
      gaps[number], limit = gap(number, pair[0], position, tokens)
      ties += gaps[number] <= limit
  equal, seconds = cell.inputs - len(gaps), timed[name].seconds
  same = f"{equal} of {cell.inputs}"
  return {
    "program": name,
    "ms_a_token": median_ratio(1e3 * seconds, lengths),
    "tokens_a_second": float(cell.tokens / seconds.sum()),
    "over_baseline": cell.speedup,
    "ours_over_it": cells[OURS].over(cell),
    "same": f"{same}, {ties} of {len(gaps)} others ties" if gaps else same,
    "equal": equal,
    "ties": int(ties),
    "gaps": gaps,
    "seconds": seconds.tolist(),
    "tokens": lengths.tolist(),
  }


def _outputs(timed: Timed) -> list[list[int]]:
  """Returns the tokens of outputs, end of sequence included."""
  return [
    np.asarray(each.tokens)[0, : int(each.statistics.emitted[0])].tolist()
    for each in timed.results
  ]
