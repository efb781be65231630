"""Counts the communication between devices in the HLO text of a compiled program."""

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
  """Returns the number of a program's collective operations, by kind.

  The decoding loop is the loop with the most collective operations, among the loops
  with an unknown number of turns.

  Args:
    hlo: text of the optimised program, from `compiled.as_text()`.

  Returns:
    'iteration' counts one turn of the decoding loop, with inner loops unrolled. 'once'
    counts the rest of the program. All branches count, so the counts are upper bounds.

  Raises:
    ValueError: if all loops have a known number of turns.
  """
  program = Program.read(hlo)
  loops = [_total(program, body) for body in program.open_loops()]
  iteration = max(loops, key=Counter.total)
  return {"iteration": iteration, "once": _total(program, program.entry) - iteration}


def _total(program: Program, name: str) -> Counter:
  total = Counter()
  for operation in program.computations.get(name, ()):
    # The start of an asynchronous operation is counted, not the end.
    kind = operation.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
      total[kind] += 1
    for callee in operation.callees:
      for kind, count in _total(program, callee).items():
        total[kind] += (program.turns(operation) or 1) * count
  return total
