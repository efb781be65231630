"""The tables of what an accelerator was measured to do."""

from collections.abc import Mapping
from typing import Any

from specdec_t5x.bench.environment import environment
from specdec_t5x.bench.model.devices import Device
from specdec_t5x.bench.model.pieces import Cost, Piece
from specdec_t5x.bench.model.pieces import words as piece_words
from specdec_t5x.bench.table import Table, listed

Found = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any] | None]]


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
  before = [Table.of("accelerator.pieces", pieces)]
  if buffers := _buffer_rows(of("buffers")):
    before.append(Table.of("accelerator.buffers", buffers, {"first": first}))
  profile = top["rows"] if top else []
  before.append(Table.of("accelerator.profile", profile, {"first": first}))
  return Table.of(
    "accelerator",
    loops,
    {"device": environment()["device"]},
    notes=[listed(seen or {})],
    settings={name: value for name, value in vars(args).items() if name != "recorded"},
    facts={"device_seen": seen},
    before=before,
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
