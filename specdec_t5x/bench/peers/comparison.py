"""What the programs of this folder take on the same inputs, and where outputs differ.

The unit of time is seconds a token of one input at batch 1, encoder included.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specdec_t5x.bench import environment as environments
from specdec_t5x.bench.measured import Measured, Setting, beside
from specdec_t5x.bench.peers.programs import (
  BASELINE,
  OURS,
  PROGRAMS,
  Workload,
  items,
  programs,
)
from specdec_t5x.bench.table import Table, listed
from specdec_t5x.bench.timed import Timed, alternate, median_ratio
from specdec_t5x.diagnose.divergence import first_difference

GapFn = Callable[[int, Sequence[int], int, Sequence[int]], tuple[float, float]]


# The last one decides whether Hugging Face adapts its threshold in its own schedule.
PACKAGES = (*environments.PACKAGES, "torch", "transformers", "scikit-learn")


def compare(work: Workload, settings: Mapping[str, Any]) -> Table:
  """Runs every program that there is on every input, in turn.

  Args:
    work: what is decoded, and how.
    settings: where models and inputs came from, without folders.

  Returns:
    A row a program, with "equal", how many outputs are our baseline's, token for token;
    "ties", how many of the others part from it where the two tokens' logits are equal
    up to rounding, and "gaps", the difference of those logits by input; "seconds" of
    each input and "tokens" of each output. Of programs that did not run, why.

  Raises:
    ValueError: as for `programs`.
  """
  present, missing = programs(work)
  timed, gap = alternate(present, items(work)), gap_of(work)
  cells = beside(timed, Setting(work.gamma, 0.0), BASELINE)
  rows = {name: _row(name, timed, cells, gap) for name in timed}
  rows |= {name: {"program": name, "ms_a_token": why} for name, why in missing.items()}
  facts = {
    "inputs": len(work.inputs),
    "input_length": work.inputs[0].shape[1],
    **{name: getattr(work, name) for name in ("gamma", "max_length", "alpha")},
    "tokens_a_call": cells[OURS].tokens_per_call.value,
  }
  return Table.of(
    "peers",
    [rows[name] for name in PROGRAMS],
    notes=[listed(facts | settings)],
    settings=settings,
    facts={**facts, "missing": missing},
    made=environment(),
  )


def environment() -> dict[str, str | None]:
  """Returns versions, the provider of `t5x`, the device and the date."""
  t5x = importlib.import_module("t5x")
  provider = getattr(t5x, "PROVIDER", "upstream T5X")
  found = environments.environment(PACKAGES)
  return found | {"t5x": f"{provider} {t5x.__version__}"}


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
