"""Shows how speculative decoding works on one text, as the paper's figure 1 does.

  python scripts/show_trace.py \
    --text "translate English to German: Jan visited two old teachers."

Each line is an iteration, that is, one call of the target: the drafted tokens that it
accepted, the one that it rejected, and the token that it put in its place. Where the
output is no terminal, marks take the place of colours. With --svg=FILE the trace is
also drawn as an image.
"""

import argparse
import sys
import textwrap
from collections.abc import Sequence

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from etils import epath

import specdec_t5x
from specdec_t5x.demo.recipe import ENDE
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.trace import render
from specdec_t5x.trace.iterations import Iteration, trace_decode


def main(argv: Sequence[str] | None = None) -> int:
  """Decodes what the flags say and prints the trace.

  Args:
    argv: the flags; the process's own where None.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  args = _parser().parse_args(argv)
  try:
    iterations = _trace(args)
    show = render.to_ansi if sys.stdout.isatty() else render.to_plain
    print(show(iterations), end="")
    if args.svg:
      title = textwrap.shorten(args.text, 90, placeholder=" ...")
      epath.Path(args.svg).write_text(render.to_svg(iterations, title))
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  tokens = sum(len(iteration.output) for iteration in iterations)
  print(f"{tokens} tokens in {len(iterations)} calls of the target")
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--text", required=True, help="with the models' own prefix")
  parser.add_argument(
    "--target", default=ENDE.target.checkpoint, help="checkpoint (%(default)s)"
  )
  parser.add_argument(
    "--draft", default=ENDE.drafts[0].checkpoint, help="checkpoint (%(default)s)"
  )
  parser.add_argument("--vocabulary", default=ENDE.vocabulary, help="(%(default)s)")
  parser.add_argument(
    "--gamma", type=int, default=DEFAULT_GAMMA, help="tokens drafted a call"
  )
  parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
  parser.add_argument("--seed", type=int, default=0, help="of the sampling")
  parser.add_argument("--svg", metavar="FILE", help="where to write the image")
  return parser


def _trace(args: argparse.Namespace) -> tuple[Iteration, ...]:
  sampling = specdec_t5x.Sampling(args.temperature)
  for flag in ("vocabulary", "target", "draft"):
    path = getattr(args, flag)
    if not epath.Path(path).exists():
      raise ValueError(
        f"--{flag}: {path!r} does not exist. `make demo` makes the demo pair, which is "
        "the default; or name files of your own."
      )
  return trace_decode(
    args.text,
    specdec_t5x.load_model(args.target),
    specdec_t5x.load_model(args.draft),
    args.vocabulary,
    gamma=args.gamma,
    sampling=sampling,
    seed=args.seed,
  )


if __name__ == "__main__":
  sys.exit(main())
