"""Is it a bug or rounding? Compares greedy speculation with plain decoding.

  python -m specdec_t5x.diagnose
  python -m specdec_t5x.diagnose --target DIR --draft DIR --vocabulary FILE \
    --input FILE --prefix "translate English to German: " --dtypes float32 bfloat16

Decodes every input both ways, finds the first difference of each pair of outputs, and
judges whether the two tokens are a numerical tie: the products for a block and for a
single token have different shapes, and different shapes round differently. With
--strict the plain run scores in blocks of gamma + 1, too, and the outputs should be
equal bit for bit. To reproduce another run, give the run's batch size, max_length and
dtype, as ties depend on them. In float32 products keep all digits here; set
JAX_DEFAULT_MATMUL_PRECISION=default to include a GPU's TF32 or a TPU's bfloat16 passes.

Exits with 0 if there are no differences or only ties, with 1 if there is another
difference or logits are NaN, and with 2 if the input is bad.
`specdec_t5x.diagnose.divergence` defines the verdicts and separates rounding from bugs.
"""

import argparse
import dataclasses
import json
import sys
import textwrap
from collections.abc import Sequence

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

import jax
from etils import epath

from specdec_t5x import api, console
from specdec_t5x.data import hints, text_files
from specdec_t5x.demo import embedded
from specdec_t5x.diagnose.divergence import DIFFERENT, TIE, Report
from specdec_t5x.diagnose.recording import Settings, compare
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.network.config import DTYPES
from specdec_t5x.tables import aligned
from specdec_t5x.trace.recording import piece_of
from specdec_t5x.vocabularies.base import Vocabulary
from specdec_t5x.vocabularies.opening import open_vocabulary

HEADER = (
  *("line", "position", "plain", "speculative", "gap plain", "gap speculative"),
  *("logits differ by", "verdict"),
)
TOO_LONG = 20  # The most rows of the table. The JSON file has every difference.
ADVICE = {
  "none": "Nothing to do.",
  "ties": (
    "The differences are rounding, not a bug: score in float32 to make ties rarer, or "
    "compare with the strict baseline (--strict here, BLOCK = GAMMA + 1 in "
    "configs/baseline_*.gin)."
  ),
  "strict": (
    "The two runs have products of equal shapes, but the machine does not compute "
    "equal results. Compare outputs up to ties only."
  ),
  "bugs": (
    "Rounding does not explain the differences: see the reasons above. Please report "
    "the bug with the --json file and the versions of `python -m specdec_t5x.doctor`."
  ),
  "not numbers": (
    "The target's logits are NaN or infinite: the outputs can't be compared, and have "
    "no meaning. Decode in float32, or train or copy the checkpoint again."
  ),
  "beyond": (
    "Logits differ by more than rounding at places where the outputs agree. A bug is "
    "likely, and other inputs will show the bug."
  ),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Compares what the flags name (None: the process's); returns the exit status."""
  parser = _parser()
  args = parser.parse_args(argv)
  try:
    texts = _texts(args)
    vocabulary = _vocabulary(args)
    reports = {name: _compare(args, texts, vocabulary, name) for name in args.dtypes}
    if args.json:
      document = _document(args, texts, vocabulary, reports)
      epath.Path(args.json).write_text(json.dumps(document, indent=2) + "\n")
  except (ValueError, OSError) as error:
    parser.exit(2, f"{parser.prog}: error: {error}\n")
  print("\n\n".join(_render(*item, args, vocabulary) for item in reports.items()))
  return int(any(report.bugs or report.not_numbers for report in reports.values()))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.diagnose",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--target", default=embedded.target(), help="target's checkpoint (%(default)s)")
  add("--draft", default=embedded.draft(), help="draft's checkpoint (%(default)s)")
  add("--vocabulary", default=embedded.vocabulary(), help="SentencePiece (%(default)s)")
  add(
    "--input",
    metavar="FILE",
    help="file with an example on every line (the demo's test set)",
  )
  add(
    "--examples",
    type=int,
    help="maximum number of examples (100 of the demo's, or every line)",
  )
  add(
    "--prefix",
    help="text before every line ('' with --input, else the demo task's prefix)",
  )
  add(
    "--gamma",
    type=int,
    default=DEFAULT_GAMMA,
    help="drafted tokens per call (%(default)s)",
  )
  add(
    "--max_length",
    type=int,
    default=128,
    help="maximum number of output tokens (%(default)s)",
  )
  add(
    "--batch_size", type=int, default=16, help="examples decoded at once (%(default)s)"
  )
  add(
    "--dtypes", nargs="+", choices=DTYPES, default=["float32"], help="dtypes (float32)"
  )
  add("--strict", action="store_true", help="score the plain run in blocks, too")
  add("--json", metavar="FILE", help="file for the complete results")
  return parser


def _texts(args) -> list[str]:
  """Returns the prefixed inputs."""
  if args.examples is not None and args.examples < 1:
    raise ValueError(f"--examples must be at least 1, got {args.examples}.")
  prefix = args.prefix
  if args.input is None:
    count = 100 if args.examples is None else args.examples
    texts, _ = embedded.examples()
    if count > len(texts):
      raise ValueError(
        f"--examples: the demo's test set has {len(texts)} lines, got {count}. "
        "Give a file with --input."
      )
    lines = [text.removeprefix(embedded.PREFIX) for text in texts[:count]]
    prefix = embedded.PREFIX if prefix is None else prefix
  else:
    try:
      lines = text_files.read_lines(args.input)[: args.examples]
    except ValueError as error:
      raise ValueError(f"--input: {error}") from error
  if not any(line.strip() for line in lines):
    raise ValueError(
      f"--input: {args.input!r} has no text. Give an example on every line."
    )
  return [(prefix or "") + line for line in lines]


def _vocabulary(args) -> Vocabulary:
  """Checks that all files exist, then returns the vocabulary."""
  names = ("vocabulary", "target", "draft")
  hints.check_exist({name: getattr(args, name) for name in names})
  if args.json and not epath.Path(args.json).parent.is_dir():
    raise ValueError(
      f"--json: the folder of {args.json!r} does not exist. Make the folder first."
    )
  return open_vocabulary(args.vocabulary)


def _compare(args, texts, vocabulary, dtype) -> Report:
  console.stage(f"{dtype}: loading target and draft.")
  target = api.load_model(args.target, dtype)
  draft = api.load_model(args.draft, dtype)
  settings = Settings(
    gamma=args.gamma,
    max_length=args.max_length,
    batch_size=args.batch_size,
    eos_id=api.end_tokens(target, vocabulary),
    strict=args.strict,
  )
  size = target.network.config.vocab_size
  if vocabulary.vocab_size > size:
    raise ValueError(
      f"--vocabulary: {args.vocabulary!r} has {vocabulary.vocab_size} tokens, the "
      f"target's vocab_size is {size}. Give the target's own vocabulary."
    )
  ids = api.encoded(texts, target.network, vocabulary)
  console.stage(
    f"{dtype}: compiling plain and speculative decoding, once, then decoding "
    f"{len(texts)} inputs both ways."
  )
  return compare(target, draft, ids, settings)


def _render(dtype: str, report: Report, args, vocabulary) -> str:
  """Returns the report of a dtype: summary, noise, differences and advice."""
  shape = f"{args.gamma + 1} tokens a call" if args.strict else "one token a call"
  differences = report.differences
  distance = report.distance
  rounding = report.rounding
  lines = [
    f"{dtype}: {len(differences)} of {report.examples} outputs differ: {report.ties} "
    f"ties, {report.bugs} {DIFFERENT} (gamma {args.gamma}, plain run {shape})",
    f"  logits, plain against speculative: median {distance.median:.2g}, largest "
    f"{distance.largest:.2g}, equal bit for bit at {report.identical} of "
    f"{report.positions} positions",
    f"  logits, plain against a whole pass: median {rounding.median:.2g}, largest "
    f"{rounding.largest:.2g} (rounding, without speculation)",
    f"  top-2 gap: smallest {report.smallest_gap:.2g}; {report.close} positions are "
    "within twice the largest rounding, where a tie can turn",
  ]
  if differences:
    rows = [_cells(difference, vocabulary) for difference in differences[:TOO_LONG]]
    lines += ["", *textwrap.indent(aligned([HEADER, *rows]), "  ").splitlines()]
  if len(differences) > TOO_LONG:
    lines.append(
      f"  and {len(differences) - TOO_LONG} more; --json FILE has the complete list"
    )
  # The first line with each reason.
  reasons = {x.reason: x.example + 1 for x in reversed(differences) if x.verdict != TIE}
  lines += [f"  {DIFFERENT}: line {line}: {why}" for why, line in reasons.items()]
  if report.not_numbers:
    first = report.not_numbers[0] + 1
    count = len(report.not_numbers)
    lines.append(f"  not numbers: the logits of {count} examples, line {first} first")
  for name in _advice(report, args):
    lines += textwrap.wrap(f"  -> {ADVICE[name]}", 88, subsequent_indent=" " * 5)
  return "\n".join(lines)


def _advice(report: Report, args) -> list[str]:
  names = ["not numbers"] if report.not_numbers else []
  if report.bugs and not names:
    names.append("bugs")
  elif report.beyond:
    names.append("beyond")
  if report.ties and not args.strict:
    names.append("ties")
  if args.strict and report.identical < report.positions and not names:
    names.append("strict")
  return names or ["none"]


def _cells(difference, vocabulary) -> tuple[str, ...]:
  return (
    str(difference.example + 1),
    str(difference.position + 1),
    *(_token(token, vocabulary) for token in difference.tokens),
    *(f"{gap:.2g}" for gap in difference.gaps),
    f"{difference.distance:.2g}",
    difference.verdict,
  )


def _token(token, vocabulary) -> str:
  return "(none)" if token is None else f"{piece_of(vocabulary, token)} ({token})"


def _document(args, texts, vocabulary, reports) -> dict:
  """Returns the settings and all results, for JSON."""
  device = jax.devices()[0]
  return {
    "settings": vars(args),
    "jax": jax.__version__,
    "device": f"{device.platform} {device.device_kind}",
    "dtypes": {
      name: {
        **dataclasses.asdict(report),
        "ties": report.ties,
        "bugs": report.bugs,
        "differences": [
          {
            **dataclasses.asdict(difference),
            "text": texts[difference.example],
            "pieces": [
              None if token is None else piece_of(vocabulary, token)
              for token in difference.tokens
            ],
          }
          for difference in report.differences
        ],
      }
      for name, report in reports.items()
    },
  }


if __name__ == "__main__":
  sys.exit(main())
