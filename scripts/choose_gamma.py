"""Measures a pair on this device and writes the best GAMMA to a gin file.

  python scripts/choose_gamma.py --preset demo --tasks ende --output runs/gamma.gin
  python scripts/choose_gamma.py --target DIR --draft NAME=DIR --vocabulary FILE \
    --inputs FILE --prefix "translate English to German: " --temperature 1 \
    --output my_gamma.gin
  python -m t5x.infer --gin_file=configs/spec_ende.gin --gin_file=my_gamma.gin

Prints the speed-up that is predicted for each gamma, from alpha and the measured cost
of a draft step, of each block and of the encoders. With --online the file sets
GAMMA_POLICY='online', with the costs that it needs. Leave all cores to it.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from specdec_t5x.bench import choice, flags, jobs


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what the flags say, prints the prediction and writes the file.

  Args:
    argv: the flags; the process's own where None.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  args = _parser().parse_args(argv)
  try:
    study = jobs.from_flags(args)[0].load()
    draft = study.drafts[0]
    found = choice.choose(study, draft, args.gammas, args.temperature)
    text = choice.gin_lines(found, study, draft, args.temperature, args.online)
    path = pathlib.Path(args.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  print(choice.markdown(found), end="")
  print(f"Written: {args.output}", file=sys.stderr)
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  flags.add_pairs(parser)
  add = parser.add_argument
  add("--gammas", type=int, nargs="+", default=[*range(1, 11)], help="(%(default)s)")
  add("--temperature", type=float, default=0.0, help="(%(default)s)")
  add("--num-tokens", type=int, help="output tokens for alpha (2000; paper: 10000)")
  add("--runs", type=int, default=15, help="of each part's clock (%(default)s)")
  add("--online", action="store_true", help="activate GAMMA_POLICY='online'")
  add("--output", metavar="FILE", required=True, help="the gin file")
  return parser


if __name__ == "__main__":
  sys.exit(main())
