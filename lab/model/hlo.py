"""Computations, operations and loops of a compiled program in XLA's text format."""

import dataclasses
import re
from collections.abc import Mapping, Sequence

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_OPERATION = re.compile(r"^\s*(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
  r"(?:to_apply|calls|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r"known_trip_count[^\d]*(\d+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")


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
    """The names of the operands."""
    depth = 1
    end = len(self.rest)
    for place, letter in enumerate(self.rest):
      depth += (letter == "(") - (letter == ")")
      if not depth:
        end = place
        break
    return tuple(_OPERAND.findall(self.rest[:end]))

  @property
  def callees(self) -> tuple[str, ...]:
    """The computations that the operation runs, for example a loop's body."""
    branches = ",".join(_BRANCHES.findall(self.rest))
    names = [name.strip().lstrip("%") for name in branches.split(",") if name]
    return (*_CALLED.findall(self.rest), *names)

  @property
  def body(self) -> str:
    """The body of a loop, or the first computation that the operation runs."""
    match = re.search(r"body=%?([\w.\-]+)", self.rest)
    return match.group(1) if match else self.callees[0]


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
  """The computations of a compiled program."""

  # Operations of each computation, by the computation's name.
  computations: Mapping[str, Sequence[Operation]]
  entry: str  # Name of the program's main computation.

  @classmethod
  def read(cls, hlo: str) -> "Program":
    """Returns the program of an HLO text from `compiled.as_text()`."""
    computations = {}
    operations = None
    entry = ""
    for line in hlo.splitlines():
      if head := _COMPUTATION.match(line):
        operations = computations.setdefault(head.group(1), [])
        entry = head.group(1) if line.startswith("ENTRY") else entry
      elif operations is not None and (match := _OPERATION.match(line)):
        root, name, shape, opcode, rest = match.groups()
        operations.append(Operation(name, shape, opcode, rest, bool(root)))
    return cls(computations, entry)

  def turns(self, operation: Operation) -> int | None:
    """Returns how many times an operation runs the callees; None if unknown.

    The text for a TPU has no trip counts. There the count is read off the condition of
    JAX's scans: a counter from 0 is less than a constant.
    """
    if operation.opcode != "while":
      return 1
    if trips := _TRIPS.search(operation.rest):
      return int(trips.group(1))
    name = _CONDITION.search(operation.rest).group(1)
    condition = self.computations.get(name, ())
    by_name = {line.name: line for line in condition}
    root = next((line for line in condition if line.is_root), None)
    if root is None or root.opcode != "compare" or "direction=LT" not in root.rest:
      return None
    limit = by_name[root.operands[1]]
    return int(limit.rest.partition(")")[0]) if limit.opcode == "constant" else None

  def open_loops(self) -> list[str]:
    """Returns the bodies of the loops with an unknown number of turns.

    Raises:
      ValueError: if all loops have a known number of turns.
    """
    loops = [
      operation.body
      for operations in self.computations.values()
      for operation in operations
      if self.turns(operation) is None
    ]
    if not loops:
      raise ValueError(
        "Expected a program with a decoding loop, got a program without `while`. "
        "Compile a decode."
      )
    return loops
