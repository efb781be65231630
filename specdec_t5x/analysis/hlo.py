"""Compiled programs as XLA prints them: computations, their operations and loops."""

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
