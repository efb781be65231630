"""Prepares a TFDS directory from your own files, without a network.

Parallel text files (repeat the three flags for several splits):

  python scripts/prepare_tfds.py --dataset wmt14_translate/de-en --tfds_data_dir DIR \
    --split test --source x.en --target x.de

JSONL or CSV, with the fields article and highlights (or en and de; document and summary
for xsum; text for lm1b):

  python scripts/prepare_tfds.py --dataset cnn_dailymail --tfds_data_dir DIR \
    --records test=file.csv

Lines of text, for lm1b alone:

  python scripts/prepare_tfds.py --dataset lm1b --tfds_data_dir DIR \
    --text test=news.en.heldout-00000-of-00050

Then run with --tfds_data_dir=DIR and the task wmt14_ende, cnn_dailymail, xsum or lm1b.
"""

import argparse
import sys
from collections.abc import Sequence

from specdec_t5x.data import offline_tfds


def main(argv: Sequence[str] | None = None) -> int:
  """Prepares the dataset of the flags and prints the number of examples.

  Args:
    argv: the flags; None takes the flags of the process.

  Returns:
    The exit status: 0, or 1 after an error message about the input.
  """
  args = _parser().parse_args(argv)
  try:
    written = offline_tfds.prepare(
      args.dataset, args.tfds_data_dir, _splits(args), args.overwrite
    )
  except ValueError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  for split, count in written.items():
    print(f"{args.dataset} {split}: {count} examples in {args.tfds_data_dir}")
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--dataset", required=True)
  parser.add_argument("--tfds_data_dir", required=True)
  parser.add_argument("--split", action="append", default=[])
  parser.add_argument("--source", action="append", default=[])
  parser.add_argument("--target", action="append", default=[])
  parser.add_argument("--records", action="append", default=[], metavar="SPLIT=FILE")
  parser.add_argument("--text", action="append", default=[], metavar="SPLIT=FILE")
  parser.add_argument("--overwrite", action="store_true")
  return parser


def _splits(args: argparse.Namespace) -> dict[str, offline_tfds.Files]:
  """Returns split -> files, from the repeated flags."""
  counts = [len(args.split), len(args.source), len(args.target)]
  if len(set(counts)) != 1:
    raise ValueError(
      f"--split, --source and --target belong together, got {counts} values. Give "
      "--split, --source and --target once for every split."
    )
  named = [
    (split, offline_tfds.ParallelFiles(source, target))
    for split, source, target in zip(args.split, args.source, args.target, strict=True)
  ]
  for flag, make in (("records", str), ("text", offline_tfds.TextLines)):
    for entry in getattr(args, flag):
      split, separator, path = entry.partition("=")
      if not (split and separator and path):
        raise ValueError(f"--{flag} got {entry!r}, expected SPLIT=FILE.")
      named.append((split, make(path)))
  splits = dict(named)
  if len(splits) != len(named):
    raise ValueError(
      f"Every split must be given once, got {[n for n, _ in named]}. Remove the "
      "repeated split."
    )
  return splits


if __name__ == "__main__":
  sys.exit(main())
