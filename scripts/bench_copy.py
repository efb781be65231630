"""Times the copy draft on texts with known outputs: DRAFTER = 'copy', no draft model.

  python scripts/bench_copy.py --texts FILE.csv --source article \
    --output-field highlights --prefix "summarize: " --vocabulary FILE --output DIR

The target has random weights of a T5 1.1 size and is made to say the given outputs
(specdec_t5x/bench/copying.py). Writes copy.json. Leave all cores to it.
"""

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Sequence

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

import sentencepiece
from etils import epath

from specdec_t5x.bench import copying as replay
from specdec_t5x.bench.environment import environment
from specdec_t5x.data import text_files
from specdec_t5x.network.sizes import SIZES, VOCAB_SIZE


def main(argv: Sequence[str] | None = None) -> int:
  """Measures what the flags say, prints the table and writes it.

  Args:
    argv: the flags; the process's own where None.

  Returns:
    The exit status: 0, or 1 after printing what is wrong with the input.
  """
  args = _parser().parse_args(argv)
  try:
    processor = sentencepiece.SentencePieceProcessor(model_file=args.vocabulary)
    bench = replay.Replay(args.size, args.gamma, args.max_length, processor.eos_id())
    rows = bench.measure(_texts(args, processor), args.matches)
    found = {
      "settings": vars(args),
      "environment": environment(),
      "rows": [dataclasses.asdict(row) for row in rows],
    }
    folder = epath.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "copy.json").write_text(json.dumps(found, indent=2) + "\n")
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  print(_markdown(rows))
  return 0


def _texts(args, processor):
  fields = [args.source] if args.lead else [args.source, args.output_field]
  rows = text_files.read_fields(args.texts, fields)[: args.num_texts]
  eos_id = processor.eos_id()
  if processor.vocab_size() > VOCAB_SIZE:
    raise ValueError(
      f"--vocabulary {args.vocabulary} has {processor.vocab_size()} pieces, more than "
      f"the network's {VOCAB_SIZE}. Use T5's, or a smaller one."
    )
  return [
    (
      replay.padded(
        processor.encode(args.prefix + row[args.source]), args.input_length, eos_id
      ),
      replay.padded(processor.encode(_output(args, row)), args.max_length, eos_id),
    )
    for row in rows
  ]


def _output(args, row):
  if not args.lead:
    return row[args.output_field]
  sentences = re.split(r"(?<=[.!?]) +", row[args.source])
  return " ".join(sentences[: args.lead])


def _markdown(rows):
  lines = [
    "| COPY_MATCH | speed-up, median text | all | tokens a call | alpha | equal |",
    "|---|---|---|---|---|---|",
  ]
  for row in rows:
    ratio = row.speedup
    lines.append(
      f"| {row.copy_match} | {ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] | "
      f"{row.in_all:.2f} | {row.tokens_per_call:.2f} | {row.alpha:.3f} | "
      f"{row.identical} of {row.texts} |"
    )
  return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--texts", metavar="FILE", required=True, help="JSONL or CSV")
  add("--source", default="article", help="the input's field (%(default)s)")
  add("--output-field", default="highlights", help="the output's (%(default)s)")
  add(
    "--lead",
    type=int,
    default=0,
    help="the output is instead the input's first so many sentences",
  )
  add("--prefix", default="", help="before each input")
  add("--vocabulary", metavar="FILE", required=True, help="a SentencePiece model")
  add("--size", choices=SIZES, default="small", help="of the target (%(default)s)")
  add("--gamma", type=int, default=7, help="the longest draft (%(default)s)")
  add("--matches", type=int, nargs="+", default=[1, 2, 3, 4], help="COPY_MATCH")
  add("--num-texts", type=int, default=40, help="the first so many (%(default)s)")
  add("--input-length", type=int, default=512, help="in tokens (%(default)s)")
  add("--max-length", type=int, default=128, help="of an output (%(default)s)")
  add("--output", metavar="DIR", required=True, help="for copy.json")
  return parser


if __name__ == "__main__":
  sys.exit(main())
