"""Compiled programs as XLA prints them: computations, loops and what operations move.

A shape may say where an array lies: `S(n)`, n > 0, is on the chip (a TPU's VMEM, CMEM
or SMEM), everything else is in the device's large memory. A TPU pads the last two axes,
in the order of the layout, to whole tiles: `T(8,128)`. `E(4)`: a number takes so many
bits.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_OPERATION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_ON_CHIP = re.compile(r"S\([1-9]\d*\)")
_TILE = re.compile(r":T\(([\d,]+)\)")
_ELEMENT = re.compile(r"E\((\d+)\)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
  r"(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r"known_trip_count[^\d]*(\d+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Names for what other operations made, and what ends an asynchronous one.
_FREE = {
  *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"),
  *("partition-id", "replica-id", "opt-barrier", "optimization-barrier"),
}
# Reading a part of their first operand.
_PARTIAL = ("dynamic-slice", "slice", "gather", "slice-start")


@dataclasses.dataclass(frozen=True)
class Operation:
  """A line of a computation."""

  name: str
  shape: str
  opcode: str
  rest: str
  is_root: bool

  @property
  def operands(self) -> tuple[str, ...]:
    """Names of what it reads."""
    depth, end = 1, len(self.rest)
    for place, letter in enumerate(self.rest):
      depth += (letter == "(") - (letter == ")")
      if not depth:
        end = place
        break
    return tuple(_OPERAND.findall(self.rest[:end]))

  @property
  def callees(self) -> tuple[str, ...]:
    """The computations that it runs: of a loop its body, and its condition."""
    branches = ",".join(_BRANCHES.findall(self.rest))
    named = (name.strip().lstrip("%") for name in branches.split(",") if name)
    return (*_CALLED.findall(self.rest), *named)

  @property
  def body(self) -> str:
    """What a loop repeats, or the one computation that it runs."""
    found = re.search(r"body=%?([\w.\-]+)", self.rest)
    return found.group(1) if found else self.callees[0]


@dataclasses.dataclass(frozen=True)
class Work:
  """What a piece of a program does.

  Attributes:
    moved: bytes from and to the device's large memory, tiles' padding included.
    operations: that are started one after the other, scalars' left out.
    cycles: the TPU compiler's own estimate of what its operations take in its clock;
      waiting for what was fetched ahead is not in it. 0 where it gives none.
  """

  moved: int = 0
  operations: int = 0
  cycles: int = 0

  def __add__(self, other: "Work") -> "Work":
    pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
    return Work(*(a + b for a, b in pairs))

  def times(self, count: int) -> "Work":
    """Returns the work of so many turns."""
    return Work(*(count * each for each in dataclasses.astuple(self)))


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """The computations of a compiled program.

  Attributes:
    computations: their operations, by name.
    entry: the one that runs.
  """

  computations: Mapping[str, Sequence[Operation]]
  entry: str

  @classmethod
  def read(cls, hlo: str) -> "Program":
    """Returns the program of an HLO text, as `compiled.as_text()` gives it."""
    computations, current, entry = {}, None, ""
    for line in hlo.splitlines():
      if head := _COMPUTATION.match(line):
        current = computations.setdefault(head.group(1), [])
        entry = head.group(1) if line.startswith("ENTRY") else entry
      elif current is not None and (found := _OPERATION.match(line)):
        root, name, shape, opcode, rest = found.groups()
        current.append(Operation(name, shape, opcode, rest, bool(root)))
    return cls(computations, entry)

  def total(self) -> Work:
    """Returns the work of the whole program; loops of unknown length turn once."""
    return self._work(self.entry)

  def turn(self) -> Work:
    """Returns the work of a turn of the longest loop whose turns nobody knows.

    That is the decoding loop, or the one that repeats a part; loops in it unrolled.
    """
    return max(map(self._work, self.open_loops()), key=lambda work: work.moved)

  def turns(self, each: Operation) -> int | None:
    """Returns how often it runs what it calls; None of a loop where nobody knows.

    A TPU's text has no count; there the condition says it, as JAX writes its scans: a
    counter from 0, less than a constant.
    """
    if each.opcode != "while":
      return 1
    if found := _TRIPS.search(each.rest):
      return int(found.group(1))
    condition = self.computations.get(_CONDITION.search(each.rest).group(1), ())
    named = {line.name: line for line in condition}
    root = next((line for line in condition if line.is_root), None)
    if root is None or root.opcode != "compare" or "direction=LT" not in root.rest:
      return None
    limit = named[root.operands[1]]
    return int(limit.rest.partition(")")[0]) if limit.opcode == "constant" else None

  def open_loops(self) -> list[str]:
    """Returns the bodies of the loops whose number of turns nobody knows beforehand.

    Raises:
      ValueError: where there is no such loop.
    """
    every = (each for lines in self.computations.values() for each in lines)
    loops = [each.body for each in every if self.turns(each) is None]
    if not loops:
      raise ValueError("Expected a program with a decoding loop, got none: no `while`.")
    return loops

  def _work(self, name: str) -> Work:
    operations = self.computations[name]
    shapes = {each.name: each.shape for each in operations}
    return sum((self._of(each, shapes) for each in operations), Work())

  def _of(self, each: Operation, shapes: Mapping[str, str]) -> Work:
    if each.opcode in _FREE or each.opcode.endswith("-done"):
      return Work()
    if each.opcode in ("while", "call"):
      return self._work(each.body).times(self.turns(each) or 1)
    if each.opcode == "conditional":
      branches = map(self._work, each.callees)
      return max(branches, key=lambda work: work.moved)  # The dearest.
    found = _CYCLES.search(each.rest)
    return Work(
      moved=self._moved(each, shapes),
      operations=int(any(array.dims for array in _arrays(each.shape))),
      cycles=int(found.group(1)) if found else 0,
    )

  def _moved(self, each, shapes) -> int:
    if each.opcode in ("copy-start", "slice-start"):
      # (to, from, ..) or ((from), to, ..): the smaller one is what is moved.
      ends = [shape for shape in _arrays(each.shape) if shape.dims]
      least = min(shape.padded for shape in ends)
      return sum(least for shape in ends if not shape.on_chip)
    if each.opcode == "custom-call" and "ConcatBitcast" in each.rest:
      return 0
    reads = (
      self._read(each, place, shapes.get(operand, ""))
      for place, operand in enumerate(each.operands)
    )
    return sum(reads) + self._written(each)

  def _read(self, each: Operation, place: int, shape: str) -> int:
    """Returns the bytes that an operation reads of an operand in the large memory."""
    if each.opcode in _PARTIAL and place == 0:
      return _bytes(each.shape) if _bytes(shape) else 0
    if each.opcode == "dynamic-update-slice" and place == 0:
      return 0  # In place.
    if each.opcode != "fusion":
      return _bytes(shape)
    return min(_bytes(shape), self._read_inside(each.body, place, bool(_bytes(shape))))

  def _read_inside(self, name: str, place: int, in_memory: bool) -> int:
    operations = self.computations[name]
    mark = f"{place})"
    parameter = next(
      each
      for each in operations
      if each.opcode == "parameter" and each.rest.startswith(mark)
    )
    whole = _bytes(parameter.shape, anywhere=True) if in_memory else 0
    read = 0
    for each in operations:
      for at, operand in enumerate(each.operands):
        if operand != parameter.name:
          continue
        if each.opcode in _PARTIAL and at == 0:
          read += _bytes(each.shape, anywhere=True) if in_memory else 0
        elif each.opcode == "fusion":
          read += self._read_inside(each.body, at, in_memory)
        elif each.opcode != "dynamic-update-slice" or at:
          return whole
    return min(whole, read)

  def _written(self, each: Operation) -> int:
    """Returns the bytes that it writes to the large memory."""
    whole = _bytes(each.shape)
    if not whole:
      return 0
    if each.opcode == "fusion":
      return min(whole, self._updated(each.body))
    if each.opcode == "dynamic-update-slice":
      return 0  # What it writes was counted as what it reads.
    return whole

  def _updated(self, name: str) -> int:
    """Returns the bytes that a fusion writes: of an update in place, the update's."""
    operations = {each.name: each for each in self.computations[name]}
    root = next(each for each in operations.values() if each.is_root)
    ends = [operations[n] for n in root.operands] if root.opcode == "tuple" else [root]
    written = 0
    for end in ends:
      while end.opcode == "bitcast":
        end = operations[end.operands[0]]
      if end.opcode == "dynamic-update-slice":
        written += _bytes(operations[end.operands[1]].shape, anywhere=True)
      elif end.opcode == "fusion":
        written += self._updated(end.body)
      else:
        written += _bytes(end.shape, anywhere=True)
    return written


@dataclasses.dataclass(frozen=True)
class _Array:
  dims: tuple[int, ...]
  bits: int
  layout: str

  @property
  def on_chip(self) -> bool:
    return bool(_ON_CHIP.search(self.layout))

  @property
  def padded(self) -> int:
    """Bytes, with what fills its tiles."""
    dims = list(self.dims)
    minor = [int(n) for n in self.layout.split(":")[0].split(",") if n.isdigit()]
    tile = _TILE.search(self.layout)
    sizes = [int(n) for n in tile.group(1).split(",")] if tile else []
    for axis, size in zip(minor, reversed(sizes), strict=False):
      dims[axis] = -(-dims[axis] // size) * size
    return -(-math.prod(dims) * self.bits // 8)


@functools.lru_cache(maxsize=4096)
def _arrays(shape: str) -> tuple[_Array, ...]:
  return tuple(
    _Array(
      tuple(int(n) for n in dims.split(",") if n),
      _bits(kind, layout),
      layout,
    )
    for kind, dims, layout in _SHAPE.findall(shape)
  )


def _bits(kind: str, layout: str) -> int:
  """Returns the bits of a number: at least 8, but where a layout packs smaller ones.

  >>> _bits("s4", "1,0"), _bits("s4", "1,0:T(64,128)(8,1)E(4)"), _bits("bf16", "0")
  (8, 4, 16)
  """
  if packed := _ELEMENT.search(layout):
    return int(packed.group(1))
  bits = re.match(r"[a-z]+(\d+)", kind)
  return max(8, int(bits.group(1))) if bits else 8


def _bytes(shape: str, anywhere: bool = False) -> int:
  """Returns the bytes of arrays in the large memory, or anywhere; scalars' are none."""
  arrays = (a for a in _arrays(shape) if a.dims)
  return sum(a.padded for a in arrays if anywhere or not a.on_chip)
