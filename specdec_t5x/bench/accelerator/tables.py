"""The tables of what an accelerator was measured to do."""

from collections.abc import Mapping
from typing import Any

from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.model.devices import Device
from specdec_t5x.bench.model.pieces import Cost, Piece
from specdec_t5x.bench.model.pieces import words as piece_words
from specdec_t5x.bench.table import Table, columns, listed

Found = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]]

_LOOPS = columns(
  "target | draft | batch | temperature T | gamma | iteration:3 iteration, ms | "
  "plain:3 plain token, ms | alpha | came?- as it came out | "
  "from_loops E(alpha, gamma) plain / iteration | speed?- speed-up, whole calls | "
  "identical?- as plain"
)
_PIECES = columns(
  "piece | batch | ms:3 measured, ms | roofline:3 roofline, ms | "
  "over roofline / measured | moved:1 MB moved | operations | "
  "gbps:0 GB a second | share of this device's"
)
_BUFFERS = columns(
  "buffers command buffers | iteration:3 iteration, ms | plain:3 plain token, ms | "
  "over iteration, as it is / this"
)
_TOP = columns("name operation | count times | ms:3 | share")
_NOTES = (
  "Random weights. A turn of each loop: the slope between few and many, plain and "
  "speculative in turn, medians. Speed-up: whole calls, encoder included, the draft an "
  "oracle that proposes the target's token with probability alpha after running the "
  "draft network (T = 0); median [quartiles] of the runs.",
  "E(alpha, gamma) plain / iteration: what these turns give at alpha, no encoder.",
  "Roofline: the compiled program's bytes over what this device was seen to read a "
  "second, or its operations over what it was seen to multiply, if longer.",
)


def words(key: Mapping[str, Any]) -> str:
  """Returns what a cell is of, in a few words."""
  if "piece" in key:
    piece = Piece(**key["piece"])
    return f"{piece_words(piece)}, batch {piece.batch}"
  if "loop" not in key:
    return "what this device reads and multiplies"
  loop = key["loop"]
  what = ", ".join(f"{n} {key[n]}" for n in ("buffers", "profile") if n in key)
  pair = f"{loop['target']} with {loop['draft']}, batch {loop['batch']}"
  how = f"T={loop['temperature']:g}, gamma {loop['gamma']}"
  return ", ".join(filter(None, (pair, how, what)))


def table(args, found: Found) -> Table:
  """Returns what was found, what was not reached included."""
  of = lambda name: [pair for pair in found.values() if name in pair[0]]
  ((_, seen),) = of("device")
  device = Device(**seen) if seen else None
  top = next((result for _, result in of("profile") if result), None)
  loops = [row for key, result in of("alphas") for row in _loop_rows(key, result)]
  first = next(words(key) for key, _ in of("alphas"))
  pieces = [_piece_row(*pair, device) for pair in of("piece")]
  before = [Table("pieces", "Pieces", _PIECES, pieces)]
  if buffers := _buffer_rows(of("buffers")):
    before.append(Table("buffers", f"Command buffers: {first}", _BUFFERS, buffers))
  profile = top["rows"] if top else []
  before.append(Table("profile", f"Profile: {first}", _TOP, profile))
  facts = {"device_seen": seen}
  settings = {name: value for name, value in vars(args).items() if name != "recorded"}
  notes = (*_NOTES, listed(seen or {}))
  title = f"Loops on {environment()['device']}"
  return Table(
    "accelerator", title, _LOOPS, loops, notes, settings, facts, before=before
  )


def _loop_rows(key, result):
  names = ("target", "draft", "batch", "gamma")
  base = {name: key["loop"][name] for name in names}
  base["temperature"] = f"{key['loop']['temperature']:g}"
  if result is None:
    yield base
    return
  base |= {name: 1e3 * result[name] for name in ("iteration", "plain")}
  for alpha, call in result["calls"].items():
    came = {"came": call["alpha"]} if "alpha" in call else {}
    yield {**base, **call, **came, "alpha": float(alpha)}


def _piece_row(key, result, device):
  piece = Piece(**key["piece"])
  row = {"piece": piece_words(piece), "batch": piece.batch}
  if result is None or device is None:
    return row
  result = dict(result)
  seconds = result.pop("seconds")
  cost = Cost(**result)
  rate = cost.moved / seconds
  return {
    **row,
    "ms": 1e3 * seconds,
    "roofline": 1e3 * cost.roofline(device),
    "over": cost.roofline(device) / seconds,
    "moved": cost.moved / 1e6,
    "operations": cost.operations,
    "gbps": rate / 1e9,
    "share": rate / device.bandwidth,
  }


def _buffer_rows(pairs):
  rows, usual = [], None
  for key, result in pairs:
    row = {"buffers": key["buffers"]}
    if result is not None:
      usual = usual or result["iteration"]
      row |= {name: 1e3 * result[name] for name in ("iteration", "plain")}
      row["over"] = usual / result["iteration"]
    rows.append(row)
  return rows
