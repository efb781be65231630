"""Measures cells, or finds them where they were measured before."""

import sys
from collections.abc import Iterable

import jax
import numpy as np
from tqdm import tqdm

from specdec_t5x import api
from specdec_t5x.bench.cells import Cells
from specdec_t5x.bench.decode import pair_costs
from specdec_t5x.bench.measured import Measured
from specdec_t5x.bench.study import Draft, Setting, Study
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.decoding.state import row_keys

# Inputs decoded before the tokens are counted. Even, so that over all of them each
# program comes first as often as the other (`walltime.alternate`).
_CHUNK = 16
_COUNTED = (
  "emitted",
  "target_calls",
  "drafted",
  "accepted",
  "acceptance_positions",
  "acceptance_mass",
)

Request = tuple[Draft, Setting]


def measure_all(
  study: Study, requests: Iterable[Request], cells: Cells, recorded: bool = False
) -> dict[tuple[str, Setting], Measured | None]:
  """Returns the cells asked for; each is kept as soon as it is measured.

  Args:
    study: what is decoded.
    requests: the cells.
    cells: those measured before, and where new ones are put.
    recorded: whether to measure nothing.

  Returns:
    By the draft's name and the setting; None where `recorded` finds no such cell.
  """
  found = {}
  with tqdm(list(requests), desc=study.task, unit="cell", file=sys.stderr) as bar:
    for draft, setting in bar:
      bar.set_postfix_str(f"{draft.name}, {describe(setting)}")
      result = _recall(study, draft, setting, cells)
      if result is None and not recorded:
        result = measure(study, draft, setting).to_result()
        cells.add(study.key(draft, setting), result)
      cell = None if result is None else Measured.of(setting, result)
      found[draft.name, setting] = cell
  return found


def describe(setting: Setting) -> str:
  """Returns a setting in a few words."""
  lenience = f", l={setting.lenience:g}" if setting.lenience != 1.0 else ""
  return f"T={setting.temperature:g}, gamma={setting.gamma}{lenience}"


def measure(study: Study, draft: Draft, setting: Setting) -> Measured:
  """Decodes inputs until there are `study.num_tokens` tokens, and times the parts.

  Batch 1. Where the setting is timed, every input is also decoded plainly, in turn.
  """
  pair, params = study.together(draft, setting)
  params = jax.device_put(params)
  rows = []
  programs = _programs(study, setting, pair, params)
  for first in range(0, len(study.inputs), _CHUNK):
    chunk = range(first, min(first + _CHUNK, len(study.inputs)))
    timed = alternate(programs, chunk)
    rows += [_row(timed, number) for number in range(len(chunk))]
    if sum(row["emitted"] for row in rows) >= study.num_tokens:
      break
  columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
  costs = None
  if setting.timed:
    sampling = study.sampling(setting)
    given = study.inputs[0], sampling, study.max_length, study.runs
    costs = pair_costs([pair], params, *given)[setting.gamma]
  return Measured(setting, columns, costs)


def _recall(study, draft, setting, cells):
  result = cells.find(study.key(draft, setting))
  if result is None and not setting.timed:
    # A cell that was timed has the same counts.
    timed = Setting(setting.gamma, setting.temperature, setting.lenience)
    result = cells.find(study.key(draft, timed))
  return result


def _programs(study, setting, pair, params):
  sampling = study.sampling(setting)
  compiled = lambda network: api.compiled(
    network, sampling, study.max_length, study.eos_id
  )
  # Made before the clock starts. An input's draws are its own, whatever is measured.
  keys = [row_keys(jax.random.key(i), 1) for i in range(len(study.inputs))]
  ours, plain = compiled(pair), compiled(study.target.network)
  programs = {"ours": lambda i: ours(params, study.inputs[i], keys[i])}
  if setting.timed:
    target = params["target"]
    programs["plain"] = lambda i: plain(target, study.inputs[i], keys[i])
  return programs


def _row(timed, number):
  result = timed["ours"].results[number]
  row = {name: getattr(result.statistics, name)[0].item() for name in _COUNTED}
  if "plain" in timed:
    plain = timed["plain"].results[number]
    row |= {
      "seconds": float(timed["ours"].seconds[number]),
      "plain_seconds": float(timed["plain"].seconds[number]),
      "plain_emitted": plain.statistics.emitted[0].item(),
      "identical": bool((plain.tokens == result.tokens).all()),
    }
  return row
