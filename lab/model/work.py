"""Counts the bytes that a compiled program moves, from the HLO text.

A shape may name the memory of an array: `S(n)`, n > 0, is on the chip (a TPU's VMEM,
CMEM or SMEM), everything else is in the device's large memory. A TPU pads the last two
axes, in the order of the layout, to whole tiles: `T(8,128)`. `E(4)` gives the bits of a
number.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

from lab.model.hlo import Operation, Program

_SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\](?:\{([^{}]*)\})?")
_ON_CHIP = re.compile(r"S\([1-9]\d*\)")
_TILE = re.compile(r":T\(([\d,]+)\)")
_ELEMENT = re.compile(r"E\((\d+)\)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Operations that only name the results of other operations.
_FREE = {
  *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all"),
  *("partition-id", "replica-id", "opt-barrier", "optimization-barrier"),
}
# Operations that read a part of the first operand.
_PARTIAL = ("dynamic-slice", "slice", "gather", "slice-start")


@dataclasses.dataclass(frozen=True)
class Work:
  """The work of a piece of a program."""

  # Bytes from and to the device's large memory, with the padding of tiles.
  moved: int = 0
  # Number of operations started in sequence, without scalar operations.
  operations: int = 0
  # The TPU compiler's estimate of the cycles of its operations, without waiting for
  # prefetched data. 0 without an estimate.
  cycles: int = 0

  def __add__(self, other: "Work") -> "Work":
    pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
    return Work(*(a + b for a, b in pairs))

  def times(self, count: int) -> "Work":
    """Returns the work of `count` turns."""
    return Work(*(count * each for each in dataclasses.astuple(self)))


def total(program: Program) -> Work:
  """Returns the work of the whole program; loops of unknown length count as a turn."""
  return _work(program, program.entry)


def turn(program: Program) -> Work:
  """Returns the work of a turn of the heaviest loop of unknown length.

  The heaviest loop is the decoding loop, or the loop that repeats a part. Inner loops
  are unrolled.
  """
  turns = (_work(program, body) for body in program.open_loops())
  return max(turns, key=lambda work: work.moved)


def _work(program: Program, name: str) -> Work:
  operations = program.computations[name]
  shapes = {each.name: each.shape for each in operations}
  return sum((_of(program, each, shapes) for each in operations), Work())


def _of(program: Program, operation: Operation, shapes: Mapping[str, str]) -> Work:
  if operation.opcode in _FREE or operation.opcode.endswith("-done"):
    return Work()
  if operation.opcode in ("while", "call"):
    return _work(program, operation.body).times(program.turns(operation) or 1)
  if operation.opcode == "conditional":
    branches = (_work(program, callee) for callee in operation.callees)
    return max(branches, key=lambda work: work.moved)  # The most expensive branch.
  cycles = _CYCLES.search(operation.rest)
  return Work(
    moved=_moved(program, operation, shapes),
    operations=int(any(array.dims for array in _arrays(operation.shape))),
    cycles=int(cycles.group(1)) if cycles else 0,
  )


def _moved(program: Program, operation, shapes) -> int:
  if operation.opcode in ("copy-start", "slice-start"):
    # (to, from, ..) or ((from), to, ..): the smaller array is moved.
    ends = [shape for shape in _arrays(operation.shape) if shape.dims]
    least = min(shape.padded for shape in ends)
    return sum(least for shape in ends if not shape.on_chip)
  if operation.opcode == "custom-call" and "ConcatBitcast" in operation.rest:
    return 0
  reads = (
    _read(program, operation, place, shapes.get(operand, ""))
    for place, operand in enumerate(operation.operands)
  )
  return sum(reads) + _written(program, operation)


def _read(program: Program, operation: Operation, place: int, shape: str) -> int:
  """Returns the bytes that an operation reads of an operand in large memory."""
  if operation.opcode in _PARTIAL and place == 0:
    return _bytes(operation.shape) if _bytes(shape) else 0
  if operation.opcode == "dynamic-update-slice" and place == 0:
    return 0  # In place.
  if operation.opcode != "fusion":
    return _bytes(shape)
  return min(
    _bytes(shape), _read_inside(program, operation.body, place, bool(_bytes(shape)))
  )


def _read_inside(program: Program, name: str, place: int, in_memory: bool) -> int:
  operations = program.computations[name]
  mark = f"{place})"
  parameter = next(
    operation
    for operation in operations
    if operation.opcode == "parameter" and operation.rest.startswith(mark)
  )
  full = _bytes(parameter.shape, anywhere=True) if in_memory else 0
  total = 0
  for operation in operations:
    for at, operand in enumerate(operation.operands):
      if operand != parameter.name:
        continue
      if operation.opcode in _PARTIAL and at == 0:
        total += _bytes(operation.shape, anywhere=True) if in_memory else 0
      elif operation.opcode == "fusion":
        total += _read_inside(program, operation.body, at, in_memory)
      elif operation.opcode != "dynamic-update-slice" or at:
        return full
  return min(full, total)


def _written(program: Program, each: Operation) -> int:
  """Returns the bytes that an operation writes to the large memory."""
  full = _bytes(each.shape)
  if not full:
    return 0
  if each.opcode == "fusion":
    return min(full, _updated(program, each.body))
  if each.opcode == "dynamic-update-slice":
    return 0  # `_read` counted the bytes of the update.
  return full


def _updated(program: Program, name: str) -> int:
  """Returns the bytes that a fusion writes; an in-place update writes the update."""
  operations = {each.name: each for each in program.computations[name]}
  root = next(each for each in operations.values() if each.is_root)
  ends = [operations[n] for n in root.operands] if root.opcode == "tuple" else [root]
  written = 0
  for end in ends:
    while end.opcode == "bitcast":
      end = operations[end.operands[0]]
    if end.opcode == "dynamic-update-slice":
      written += _bytes(operations[end.operands[1]].shape, anywhere=True)
    elif end.opcode == "fusion":
      written += _updated(program, end.body)
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
    """The bytes with the padding of tiles."""
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
  """Returns the bits of a number: at least 8 unless the layout packs smaller numbers.

  >>> _bits("s4", "1,0"), _bits("s4", "1,0:T(64,128)(8,1)E(4)"), _bits("bf16", "0")
  (8, 4, 16)
  """
  if packed := _ELEMENT.search(layout):
    return int(packed.group(1))
  bits = re.match(r"[a-z]+(\d+)", kind)
  return max(8, int(bits.group(1))) if bits else 8


def _bytes(shape: str, anywhere: bool = False) -> int:
  """Returns the bytes of arrays in large memory, or anywhere; scalars count as 0."""
  arrays = (a for a in _arrays(shape) if a.dims)
  return sum(a.padded for a in arrays if anywhere or not a.on_chip)
