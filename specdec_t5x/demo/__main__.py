"""`python -m specdec_t5x.demo`: what `make demo`, `demo-all` and `demo-lm` run."""

import argparse
import concurrent.futures
import contextlib
import os
import sys
import time
from collections.abc import Iterator

from specdec_t5x.demo import recipe
from specdec_t5x.quiet import import_quietly

TEMPERATURES = (0.0, 1.0)


class Steps:
  """Says of each step what it does, how long it will take, and how long it took."""

  def __init__(self, count: int):
    self._count = count
    self._number = 0

  @contextlib.contextmanager
  def step(self, about: str, expected: str) -> Iterator[None]:
    """Times what happens inside."""
    self._number += 1
    print(f"[{self._number}/{self._count}] {about} ({expected})", flush=True)
    begin = time.monotonic()
    yield
    print(f"      {time.monotonic() - begin:.0f} s", flush=True)


def run(pair: recipe.DemoPair, inputs: int) -> None:
  """Makes one demo pair, decodes with both commands, and prints the comparison."""
  print(f"\nDemo pair {pair.name!r}: {pair.about}. Nothing here is real data.")
  steps = Steps(len(pair.parts) + 4)
  with steps.step("Load TensorFlow, seqio and JAX", "about 10 s"):
    import_quietly("specdec_t5x.demo.making")
  _make(pair, steps)
  with steps.step("Decode the test set with and without speculation", "about 1 min"):
    same = _run_commands(pair)
  with steps.step(
    f"Compare on {inputs} inputs, batch 1, all programs in turn", "about 2 min"
  ):
    from specdec_t5x.demo import comparison

    table = comparison.compare(pair, inputs, TEMPERATURES)
  files = table.write(os.path.join(recipe.DIRECTORY, pair.name))
  print(f"\n{table.markdown()}\n{same}\nThe table is in {', '.join(files)}")


def _make(pair, steps):
  from specdec_t5x.demo import making

  with steps.step("Vocabulary", "about 10 s"):
    making.make_vocabulary(pair)
  for part in pair.parts:
    cached = os.path.isdir(part.checkpoint)
    expected = "cached" if cached else f"about {part.minutes:g} min"
    with steps.step(f"Train {part.name}: {part.about}", expected):
      if not cached:
        making.make_part(part)


def _run_commands(pair) -> str:
  from specdec_t5x.demo import commands

  def job(kind):
    directory = os.path.join(recipe.DIRECTORY, pair.name, kind)
    gin_file = f"configs/{kind}_{pair.name}.gin"
    return commands.infer(gin_file, directory, f"{directory}.log")

  # Side by side: nothing is timed here, and starting up takes longest.
  with concurrent.futures.ThreadPoolExecutor() as pool:
    plain, speculative = pool.map(job, ("baseline", "spec"))
  for finished in (plain, speculative):
    print(f"      {finished.command}", flush=True)
  same = commands.identical(plain, speculative)
  return (
    f"Greedy outputs of the two commands: {same}/{len(plain.tokens)} identical.\n"
    f"JSONL with per-example statistics: {speculative.file}"
  )


def main() -> None:
  """Parses the command line and runs the pairs that it names."""
  parser = argparse.ArgumentParser(prog="python -m specdec_t5x.demo")
  parser.add_argument(
    "--pairs", nargs="+", choices=sorted(recipe.PAIRS), default=["ende"]
  )
  parser.add_argument("--inputs", type=int, default=100, help="inputs of the table")
  flags = parser.parse_args()
  if flags.inputs < 2:
    parser.error(f"--inputs must be at least 2, got {flags.inputs}.")
  if not os.path.isfile(recipe.ENDE.target.gin_file):
    sys.exit("specdec_t5x.demo: expected to run in the repository's root (configs/).")
  # A second demo, and the commands beside this process, compile nothing again.
  compiled = os.path.abspath(os.path.join(recipe.DIRECTORY, "compiled"))
  os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)
  try:
    for name in flags.pairs:
      run(recipe.PAIRS[name], flags.inputs)
  except (ValueError, FloatingPointError) as error:
    sys.exit(f"specdec_t5x.demo: {error}")


if __name__ == "__main__":
  main()
