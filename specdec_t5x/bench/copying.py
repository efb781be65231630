r"""Times the copy draft on texts with known outputs: DRAFTER = 'copy', no draft model.

  python -m specdec_t5x.bench copy --texts FILE.csv --source article \
    --output-field highlights --prefix "summarize: " --vocabulary FILE --output DIR

How much can be copied is a matter of the texts, and how long a call takes one of the
network's size. So the target, of a T5 1.1 size, runs in full with random weights, and
its argmax is bent to a given output, such as the highlights that people wrote for an
article. What a trained model of that size would write may copy more or less. Writes
copy.json, copy.csv and copy.md. Leave all cores to it.
"""

import argparse
import re
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import sentencepiece
from jaxtyping import Array, Int

from specdec_t5x.bench import flags, programs
from specdec_t5x.bench.command import Command
from specdec_t5x.bench.measured import Measured, Setting
from specdec_t5x.bench.table import Column, Table
from specdec_t5x.bench.walltime import alternate
from specdec_t5x.data import text_files
from specdec_t5x.drafters.copy import Copy
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.network.sizes import SIZES, VOCAB_SIZE

_COLUMNS = (
  Column("copy_match", "COPY_MATCH"),
  Column("speedup", "speed-up, median text"),
  Column("in_all", "all"),
  Column("tokens_per_call", "tokens a call"),
  Column("alpha", "alpha", 3),
  Column("equal", "equal"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds the command's flags."""
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
  about = "the longest draft (%(default)s)"
  add("--gamma", type=int, default=DEFAULT_GAMMA, help=about)
  add("--matches", type=int, nargs="+", default=[1, 2, 3, 4], help="COPY_MATCH")
  add("--num-texts", type=int, default=40, help="the first so many (%(default)s)")
  add("--input-length", type=int, default=512, help="in tokens (%(default)s)")
  add("--max-length", type=int, default=128, help="of an output (%(default)s)")
  flags.add_output(parser, None)


def make(args: argparse.Namespace) -> Table:
  """Decodes every text plainly and with each least match, in turn."""
  processor = sentencepiece.SentencePieceProcessor(model_file=args.vocabulary)
  texts = _texts(args, processor)
  target = programs.random_model(args.size, 0)
  room = args.max_length, processor.eos_id()
  runs = {"plain": programs.replay(target, *room, None)}
  for match in args.matches:
    runs[match] = programs.replay(target, *room, Copy(args.gamma, match))
  timed = alternate(runs, texts)
  plain = timed.pop("plain")
  rows = [_row(args, match, plain, ours, texts) for match, ours in timed.items()]
  title = f"Copying, T5 1.1 {args.size}"
  return Table("copy", title, _COLUMNS, rows, settings=vars(args))


def _row(args, match, plain, ours, texts):
  cell = Measured.timed(Setting(args.gamma, 0.0), ours, plain)
  same = [
    bool((one.tokens == given).all() and (other.tokens == given).all())
    for one, other, (_, given) in zip(plain.results, ours.results, texts, strict=True)
  ]
  return {
    "copy_match": match,
    "speedup": cell.speedup,
    "in_all": cell.speedup_in_all,
    "tokens_per_call": cell.tokens_per_call.value,
    "alpha": cell.alpha.value or 0.0,
    "identical": sum(same),
    "texts": len(texts),
    "equal": f"{sum(same)} of {len(texts)}",
  }


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
      _padded(
        processor.encode(args.prefix + row[args.source]), args.input_length, eos_id
      ),
      _padded(processor.encode(_output(args, row)), args.max_length, eos_id),
    )
    for row in rows
  ]


def _output(args, row):
  if not args.lead:
    return row[args.output_field]
  sentences = re.split(r"(?<=[.!?]) +", row[args.source])
  return " ".join(sentences[: args.lead])


def _padded(tokens: Sequence[int], length: int, eos_id: int) -> Int[Array, "1 length"]:
  """Returns tokens cut to leave room for the end of sequence, ended and padded."""
  row = np.zeros((1, length), np.int32)
  kept = [*tokens[: length - 1], eos_id]
  row[0, : len(kept)] = kept
  return jnp.asarray(row)


COMMAND = Command(__doc__, make, add_flags)
