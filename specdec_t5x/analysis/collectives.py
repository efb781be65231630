"""Communication of a compiled program between devices, counted in its HLO text."""

import re
from collections import Counter

COLLECTIVES = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
# An asynchronous operation counts where it starts.
_OPERATION = re.compile(rf" ({'|'.join(COLLECTIVES)})(?:-start)?\(")
_CALL = re.compile(
  r"(?:to_apply|calls|body|condition|true_computation|false_computation|"
  r"async_execution_thread)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r"known_trip_count[^\d]*(\d+)")
_WHILE = re.compile(r" while\(.*body=%?([\w.\-]+)")


def count_collectives(hlo: str) -> dict[str, Counter]:
  """Returns how often a program communicates, by kind of operation.

  Args:
    hlo: the optimised program, as `compiled.as_text()` gives it.

  Returns:
    'iteration': of one turn of the program's longest loop whose number of turns is not
    known beforehand, the decoding loop, loops within it unrolled; 'once': of all else.
    Of branches each counts, so these are upper bounds.

  Raises:
    ValueError: where there is no such loop.
  """
  bodies = _computations(hlo)
  entry = next(line for line in hlo.splitlines() if line.startswith("ENTRY"))
  everything = _total(bodies, _COMPUTATION.match(entry).group(1))
  loops = [
    _total(bodies, match.group(1))
    for lines in bodies.values()
    for line in lines
    if (match := _WHILE.search(line)) and not _TRIPS.search(line)
  ]
  if not loops:
    raise ValueError("Expected a program with a decoding loop, got none: no `while`.")
  iteration = max(loops, key=Counter.total)
  return {"iteration": iteration, "once": everything - iteration}


def _computations(hlo: str) -> dict[str, list[str]]:
  """Returns the lines of each computation by its name."""
  bodies, current = {}, None
  for line in hlo.splitlines():
    if match := _COMPUTATION.match(line):
      current = bodies.setdefault(match.group(1), [])
    elif current is not None:
      current.append(line)
  return bodies


def _total(bodies: dict[str, list[str]], name: str) -> Counter:
  total = Counter()
  for line in bodies.get(name, ()):
    if match := _OPERATION.search(line):
      total[match.group(1)] += 1
    called = _CALL.findall(line)
    for branches in _BRANCHES.findall(line):
      called += [branch.strip().lstrip("%") for branch in branches.split(",")]
    turns = int(m.group(1)) if " while(" in line and (m := _TRIPS.search(line)) else 1
    for other in called:
      for kind, count in _total(bodies, other).items():
        total[kind] += turns * count
  return total
