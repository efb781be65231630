"""Communication of a compiled program between devices, counted in its HLO text."""

from collections import Counter

from specdec_t5x.analysis.hlo import Program

COLLECTIVES = (
  "all-reduce",
  "all-gather",
  "reduce-scatter",
  "all-to-all",
  "collective-permute",
)


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
  program = Program.read(hlo)
  loops = [_total(program, body) for body in program.open_loops()]
  iteration = max(loops, key=Counter.total)
  return {"iteration": iteration, "once": _total(program, program.entry) - iteration}


def _total(program: Program, name: str) -> Counter:
  total = Counter()
  for each in program.computations.get(name, ()):
    # An asynchronous operation counts where it starts.
    kind = each.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
      total[kind] += 1
    for callee in each.callees:
      for kind, count in _total(program, callee).items():
        total[kind] += (program.turns(each) or 1) * count
  return total
