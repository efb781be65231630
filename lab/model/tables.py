"""Tables from the costs of pieces: c, the paper's table 2, and advice."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks.environment import environment
from benchmarks.paper import published
from benchmarks.table import Table, declared, listed, render
from lab.model.devices import Device
from lab.model.pieces import Cost, Piece, words
from lab.model.timed import Measured
from specdec_t5x.core import theory

# The paper's names of its drafts.
_NAMES = {"small": "T5-small", "base": "T5-base", "large": "T5-large"}
# (cost of a piece, device) -> seconds.
Estimate = Callable[[Cost, Device], float]


@dataclasses.dataclass(frozen=True)
class Model:
  """The modelled seconds of a pair's pieces on a device."""

  device: Device  # The modelled device.
  costs: Mapping[Piece, Cost]  # Costs by piece.
  target: str  # Size of the target.
  # Measurements by piece. A measured piece uses the device that its products measured
  # instead of `device`.
  timed: Mapping[Piece, Measured] = dataclasses.field(default_factory=dict)

  def seconds(self, piece: Piece, of: Estimate = Cost.seconds) -> float:
    """Returns an estimate of `Cost` for a piece."""
    measured = self.timed.get(piece)
    return of(
      self.costs[piece], measured.device(self.device.name) if measured else self.device
    )

  def calls(self, size: str, batch: int) -> dict[int, Piece]:
    """Returns the calls of a network by width."""
    calls = sorted(self.costs, key=lambda piece: piece.width)
    return {
      piece.width: piece
      for piece in calls
      if (piece.kind, piece.network, piece.batch) == ("call", size, batch)
    }

  def call(self, size: str, width: float, batch: int, least: int = 1) -> float | None:
    """Returns the seconds of a call; None beyond the largest compiled width.

    Seconds between compiled widths are interpolated. Narrower calls than `least` are
    ignored.
    """
    by_width = {
      w: self.seconds(piece)
      for w, piece in self.calls(size, batch).items()
      if w >= least
    }
    if not by_width or width > max(by_width):
      return None
    return float(np.interp(width, list(by_width), list(by_width.values())))

  def speed(
    self, draft: str, gamma: int, alpha: float, batch: int = 1, least: int = 1
  ) -> float | None:
    """Returns theorem 3.8 with the modelled cost of a block; None if not compiled."""
    token = self.call(self.target, 1, batch, least)
    step = self.call(draft, 1, batch, least)
    block = self.call(self.target, gamma + 1, batch, least)
    if None in (token, step, block):
      return None
    return float(theory.expected_tokens(alpha, gamma) * token / (gamma * step + block))

  def best(
    self, draft: str, alpha: float, batch: int, least: int = 1
  ) -> tuple[int, float] | tuple[None, None]:
    """Returns the best gamma and the speed-up.

    Returns (0, 1.0) if no speed-up is above 1, and (None, None) if a needed piece is
    not compiled.
    """
    widest = max(self.calls(self.target, batch), default=1)
    speeds = {g: self.speed(draft, g, alpha, batch, least) for g in range(1, widest)}
    compiled = {gamma: speed for gamma, speed in speeds.items() if speed is not None}
    if not compiled:
      return None, None
    return max([(0, 1.0), *compiled.items()], key=lambda pair: pair[1])

  def c(self, draft: str, of: Estimate, width: int = 1) -> float | None:
    """Returns the time of a draft's call over a target's call; None if unknown."""
    step, token = (self.calls(s, 1).get(width) for s in (draft, self.target))
    if step is None or token is None or not self.seconds(token, of):
      return None
    return self.seconds(step, of) / self.seconds(token, of)


def table(
  args,
  device: Device,
  costs: Mapping[Piece, Cost],
  timed: Mapping[Piece, Measured],
  refused: Mapping[Piece, str],
) -> Table:
  """Returns the tables of the command: pieces, c, advice and table 2."""
  model = Model(device, costs, args.target, timed)
  refusals = {_named(piece): why for piece, why in refused.items()}
  extra = declared("model.timed", "lab") if timed else {}
  facts = vars(device)
  notes = [
    *extra.get("notes", ()),
    *(f"Not compiled: {name}: {why}" for name, why in refusals.items()),
    listed(facts),
  ]
  pieces = [_piece_row(model, piece) for piece in costs]
  words = {"device": device.name}
  of = functools.partial(render, package="lab")
  return of(
    "model",
    _speed_rows(model, args.drafts),
    words,
    notes=notes,
    settings=vars(args),
    facts={"device": facts, "refused": refusals},
    before=(
      of("model.pieces", pieces, words, extra.get("columns", ())),
      of("model.c", _c_rows(model, args.drafts)),
      of("model.advice", list(_advice(model, args))),
    ),
    made={**environment(), "device": f"{device.name}, as {args.topology}"},
  )


def _named(piece):
  return f"{words(piece)}, batch {piece.batch}"


def _piece_row(model: Model, piece: Piece) -> dict:
  cost = model.costs[piece]
  measured = model.timed.get(piece)
  modelled = model.seconds(piece)
  token = model.call(piece.network, 1, piece.batch)
  row = {
    "piece": words(piece),
    "batch": piece.batch,
    "moved": cost.moved / 1e6,
    "operations": cost.operations,
    "flops": cost.flops / 1e9,
    "roofline": 1e3 * cost.roofline(model.device),
    "cycles": 1e3 * cost.by_cycles(model.device),
    "modelled": 1e3 * modelled,
    "over": modelled / token if piece.kind == "call" and token else None,
    "held": cost.held / 1e9,
  }
  if measured is not None:
    row |= {"bandwidth": measured.bandwidth / 1e9, "peak": measured.peak / 1e9}
    row["measured"] = 1e3 * measured.seconds
    row["ratio"] = modelled / measured.seconds
  return row


def _printed() -> Sequence[Mapping]:
  return published.numbers()["tables_2_and_4"]


def _c_rows(model: Model, drafts) -> list[dict]:
  rows = []
  for draft in drafts:
    name = _NAMES.get(draft)
    paper = next((row["c"] for row in _printed() if row["draft"] == name), None)
    paper = paper if model.target == "xxl" else None
    c = model.c(draft, Cost.seconds)
    row = {
      "draft": draft,
      "paper": paper,
      "roofline": model.c(draft, Cost.roofline),
      "cycles": model.c(draft, Cost.by_cycles),
      "c": c,
      "ratio": c / paper if c and paper else None,
      "as_two": model.c(draft, Cost.seconds, 2),
    }
    rows.append(row)
  return rows


def _speed_rows(model: Model, drafts) -> list[dict]:
  sizes = {_NAMES[draft]: draft for draft in drafts if draft in _NAMES}
  rows = []
  for printed in _printed() if model.target == "xxl" else ():
    if (draft := sizes.get(printed["draft"])) is not None:
      gamma = printed["gamma"]
      alpha = printed["alpha"]
      c = model.c(draft, Cost.seconds)
      row = {
        **printed,
        "temperature": f"{printed['temperature']:g}",
        "paper_c": printed["c"],
        "c": c,
        "theorem": float(theory.walltime_improvement(alpha, gamma, c)) if c else None,
        "with_block": model.speed(draft, gamma, alpha),
        "as_two": model.speed(draft, gamma, alpha, least=2),
      }
      rows.append(row)
  return rows


def _advice(model: Model, args) -> Iterator[dict]:
  """Yields the best gamma by draft, alpha (from the paper's EnDe rows) and batch."""
  cases = [
    (draft, row["alpha"], batch)
    for draft in args.drafts
    for row in _printed()
    if row["draft"] == _NAMES.get(draft) and row["task"] == "ende"
    for batch in sorted(args.batches)
  ]
  for draft, alpha, batch in cases:
    token = model.call(args.target, 1, batch)
    if token is not None:

      def over(seconds, token=token):
        return None if seconds is None else seconds / token

      gamma, speed = model.best(draft, alpha, batch)
      gamma_two, speed_two = model.best(draft, alpha, batch, least=2)
      yield {
        "draft": draft,
        "alpha": alpha,
        "batch": batch,
        "block": over(model.call(args.target, 8, batch)),
        "c": over(model.call(draft, 1, batch)),
        "gamma": gamma,
        "speed": speed,
        "gamma_two": gamma_two,
        "speed_two": speed_two,
      }
