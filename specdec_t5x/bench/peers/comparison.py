"""What the programs of this folder take on the same inputs, and where outputs differ.

The unit of time is seconds a token of one input at batch 1, encoder included.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench.cells import Measured, Setting
from specdec_t5x.bench.peers.programs import (
  BASELINE,
  OURS,
  PROGRAMS,
  Workload,
  items,
  programs,
)
from specdec_t5x.bench.timed import Spread, Timed, alternate, median_ratio
from specdec_t5x.decoding.state import Decoded
from specdec_t5x.diagnose.divergence import first_difference

GapFn = Callable[[int, Sequence[int], int, Sequence[int]], tuple[float, float]]
# What a program did, and its outputs.
Came = tuple[Timed, list[list[int]]]


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
  timed = alternate(present, items(work))
  came = {name: (each, outputs(each, work.eos_id)) for name, each in timed.items()}
  gap = gap_of(work)
  rows = [_row(name, came, gap) for name in PROGRAMS if name in timed]
  calls = Measured.timed(Setting(work.gamma, 0.0), timed[OURS]).tokens_per_call
  return Comparison(tuple(rows), missing, calls.value)


def outputs(timed: Timed, eos_id: int) -> list[list[int]]:
  """Returns the tokens of outputs, ours or a peer's, end of sequence included."""

  def until_end(result):
    tokens = result.tokens if isinstance(result, Decoded) else result
    tokens = np.asarray(tokens)[0].tolist()
    return tokens[: tokens.index(eos_id) + 1] if eos_id in tokens else tokens

  return [until_end(result) for result in timed.results]


def ratio(one: Came, other: Came) -> Spread:
  """Returns one program's seconds a token over another's, the median input's."""
  pace = ((timed.seconds / [len(x) for x in found]) for timed, found in (one, other))
  return median_ratio(*pace)


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


def _row(name, came: dict[str, Came], gap):
  timed, found = came[name]
  gaps, ties = {}, 0
  for number, pair in enumerate(zip(came[BASELINE][1], found, strict=True)):
    position = first_difference(*pair)
    if position is not None:
      tokens = [output[position] for output in pair]
      gaps[number], limit = gap(number, pair[0], position, tokens)
      ties += gaps[number] <= limit
  lengths = [len(output) for output in found]
  equal = len(lengths) - len(gaps)
  same = f"{equal} of {len(lengths)}"
  return {
    "program": name,
    "ms_a_token": median_ratio(1e3 * timed.seconds, lengths),
    "tokens_a_second": float(sum(lengths) / timed.seconds.sum()),
    "over_baseline": ratio(came[BASELINE], came[name]),
    "ours_over_it": ratio(came[name], came[OURS]),
    "same": f"{same}, {ties} of {len(gaps)} others ties" if gaps else same,
    "equal": equal,
    "ties": int(ties),
    "gaps": gaps,
    "seconds": timed.seconds.tolist(),
    "tokens": lengths,
  }
