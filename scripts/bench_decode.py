"""Times speculation at set acceptance rates on random weights of any T5 size.

  python scripts/bench_decode.py --target base --draft tiny --gamma 7 \
    --alphas 0.75 0.9 --output runs/bench

Prints what an iteration is made of, speed-ups over plain decoding, measured and
predicted, and memory; writes bench.json and bench.md. Imports neither TensorFlow nor
seqio nor T5X. Leave all cores to it.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence

from specdec_t5x.bench import decode_report as bench
from specdec_t5x.bench.decode import Bench, Job
from specdec_t5x.network.config import DTYPES
from specdec_t5x.network.sizes import SIZES


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what the flags say, prints the tables and writes them.

  Args:
    argv: the flags; the process's own where None.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  args = vars(_parser().parse_args(argv))
  output, alphas, runs = (args.pop(name) for name in ("output", "alphas", "runs"))
  try:
    if not alphas or not all(0 <= alpha <= 1 for alpha in alphas) or runs < 1:
      raise ValueError(
        f"Expected alphas from 0 to 1 and at least one run, got {alphas} and {runs}."
      )
    found = bench.measure(Bench(Job(**args)), alphas, runs)
    text = bench.markdown(found)
    folder = pathlib.Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(found, indent=2) + "\n")
    (folder / "bench.md").write_text(text)
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  print(text, end="")
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add, default = parser.add_argument, Job()
  add("--target", choices=SIZES, default=default.target, help="(%(default)s)")
  add("--draft", choices=SIZES, default=default.draft, help="(%(default)s)")
  add("--gamma", type=int, default=default.gamma, help="drafted tokens (%(default)s)")
  add("--alphas", type=float, nargs="+", default=[0.75, 0.9], help="(%(default)s)")
  add("--batch", type=int, default=default.batch, help="rows (%(default)s)")
  add("--input-length", type=int, default=default.input_length, help="(%(default)s)")
  add("--output-length", type=int, default=default.output_length, help="(%(default)s)")
  add("--dtype", choices=DTYPES, default=default.dtype, help="(%(default)s)")
  add("--runs", type=int, default=9, help="of each program (%(default)s)")
  add("--output", metavar="DIR", required=True, help="for bench.json and bench.md")
  return parser


if __name__ == "__main__":
  sys.exit(main())
