"""`python -m specdec_t5x.demo`: the command of `make demo`, `demo-all` and `demo-lm`.

With `--train`, as in `make demo-train`, the command only trains the embedded pair.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import sys

from benchmarks.plotting import require_matplotlib
from specdec_t5x.demo import recipe
from specdec_t5x.demo.steps import Step, Steps
from specdec_t5x.platforms import check_platform
from specdec_t5x.quiet import import_quietly

TEMPERATURES = (0.0, 1.0)


# The minutes of steps other than training (see `recipe.Part.minutes`).
_LOAD, _VOCABULARY, _DECODE, _COMPARE = 0.12, 0.07, 0.8, 1.3
_NEXT = {
  "ende": """
To try next, with the Python of .venv:
  python scripts/show_trace.py                  # one decode, call by call
  python -m specdec_t5x.demo --more             # heads, n-grams and a smaller draft
  python -m t5x.infer --gin_file=configs/spec_ende.gin --gin.BATCH_SIZE=1 \\
    --gin.DRAFTER="'quantized'" --gin.INFER_OUTPUT_DIR="'runs/quantized'\""""
}


def run(pair: recipe.DemoPair, inputs: int, more: bool, kept: str = "") -> None:
  """Makes one demo pair, decodes with both commands, and prints the comparison.

  Args:
    pair: the pair.
    inputs: the number of inputs of the comparison.
    more: whether to compare all of the pair's drafts.
    kept: the name of the kept table, for pages; "" keeps no table.
  """
  print(f"\nDemo pair {pair.name!r}: {pair.about}. The data is synthetic.")
  parts = [part for part in pair.parts if not part.embedded]
  parts += [*pair.tables, *pair.more] if more else []
  steps = Steps(_steps(pair, parts, inputs))
  with steps.step():
    import_quietly("specdec_t5x.demo.making")
  _make(pair, parts, steps)
  with steps.step():
    same = _run_commands(pair)
  with steps.step():
    from benchmarks.command import keep
    from specdec_t5x.demo import chart, comparison

    table = comparison.compare(pair, inputs, TEMPERATURES, more, _report)
    table = dataclasses.replace(table, command=pair.command)
  folder = os.path.join(recipe.DIRECTORY, pair.name)
  files = table.write(folder) + (keep(table, kept) if kept else [])
  pictures = chart.draw(table, folder)
  print(f"\n{comparison.brief(table)}\n{same}")
  print(f"Measurements: {', '.join(files)}\nA picture: {', '.join(pictures)}")
  print(_NEXT.get(pair.name, ""))


def _report(line: str) -> None:
  print(f"      {line}", flush=True)


def train(pair: recipe.DemoPair) -> None:
  """Trains a pair's networks by the recipe; a stopped run continues.

  The networks in the package stay unchanged.
  """
  steps = Steps([Step("Load TensorFlow, seqio and JAX", _LOAD), *_trained(pair.parts)])
  with steps.step():
    import_quietly("specdec_t5x.demo.making")
  _make_parts(pair.parts, steps)
  for part in pair.parts:
    print(f"{part.name}: {part.checkpoint}")


def _trained(parts) -> list[Step]:
  return [
    Step(
      f"Train {part.name}: {part.about}", part.minutes, os.path.isdir(part.checkpoint)
    )
    for part in parts
  ]


def _steps(pair, parts, inputs) -> list[Step]:
  return [
    Step("Load TensorFlow, seqio and JAX", _LOAD),
    Step("Vocabulary", _VOCABULARY, os.path.isfile(pair.vocabulary)),
    *_trained(parts),
    Step("Decode the test set with and without speculation", _DECODE),
    Step(f"Compare on {inputs} inputs, batch 1, all programs in turn", _COMPARE),
  ]


def _make(pair, parts, steps):
  from specdec_t5x.demo import making

  with steps.step():
    making.make_vocabulary(pair)
  _make_parts(parts, steps)
  making.describe(pair)


def _make_parts(parts, steps):
  from specdec_t5x.demo import making

  for part in parts:
    with steps.step() as step:
      if not step.is_cached:
        making.make_part(part)


def _run_commands(pair) -> str:
  from benchmarks import infer

  def job(kind):
    flags = [f"--gin_file=configs/{kind}_{pair.name}.gin"]
    return infer.run(flags, os.path.join(recipe.DIRECTORY, pair.name, kind))

  # The commands run in parallel: nothing is timed, and the start-up dominates.
  with concurrent.futures.ThreadPoolExecutor() as pool:
    plain, speculative = pool.map(job, infer.BOTH)
  for finished in (plain, speculative):
    print(f"      {finished.command}", flush=True)
  same = infer.identical(plain, speculative)
  return (
    f"Greedy outputs of the two commands: {same} identical.\n"
    f"JSONL with per-example statistics: {speculative.file}"
  )


def main() -> None:
  """Parses the command line and runs the named pairs."""
  parser = argparse.ArgumentParser(prog="python -m specdec_t5x.demo")
  parser.add_argument(
    "--pairs", nargs="+", choices=sorted(recipe.PAIRS), default=["ende"]
  )
  parser.add_argument(
    "--inputs", type=int, default=60, help="number of inputs of the table"
  )
  parser.add_argument(
    "--more", action="store_true", help="also train heads, n-grams and a smaller draft"
  )
  parser.add_argument("--train", action="store_true", help="only train the pairs")
  parser.add_argument(
    "--keep", default="", help="name of the table to keep for the pages"
  )
  flags = parser.parse_args()
  if flags.inputs < 2:
    parser.error(f"--inputs must be at least 2, got {flags.inputs}.")
  if flags.keep and len(flags.pairs) > 1:
    parser.error(f"--keep names one table, got the pairs {flags.pairs}. Give one pair.")
  if not os.path.isfile(recipe.ENDE.target.gin_file):
    sys.exit("specdec_t5x.demo: expected to run in the repository's root (configs/).")
  # A second demo and the commands of the demo reuse compiled programs.
  compiled = os.path.abspath(os.path.join(recipe.DIRECTORY, "compiled"))
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)
  try:
    check_platform()
    if flags.train:
      for name in flags.pairs:
        train(recipe.PAIRS[name])
      return
    require_matplotlib()  # Checked first, as the chart comes after minutes of work.
    for name in flags.pairs:
      run(recipe.PAIRS[name], flags.inputs, flags.more, flags.keep)
  except (ValueError, FloatingPointError) as error:
    sys.exit(f"specdec_t5x.demo: {error}")


if __name__ == "__main__":
  main()
