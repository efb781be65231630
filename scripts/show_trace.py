"""Shows how speculative decoding works on one text, as the paper's figure 1 does.

  python scripts/show_trace.py \
    --text "translate English to German: Jan visited two old teachers."

A line shows one iteration, with one call of the target: the accepted tokens, the first
rejected token, and the recovered or bonus token. Without a terminal, marks replace the
colours. --svg=FILE draws the first trace with times as an image. --html=FILE writes all
traces as a page for a browser, with p, q, uniforms and times. --record=FILE keeps
traces as JSON lines, and --run=FILE shows kept traces.
"""

import argparse
import pathlib
import sys
import textwrap
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from etils import epath

import specdec_t5x
from benchmarks.command import add_flags
from specdec_t5x.data import hints
from specdec_t5x.demo import embedded
from specdec_t5x.drafters.draft_model import DEFAULT_GAMMA
from specdec_t5x.trace import page, recording, render
from specdec_t5x.trace.recording import Trace

TEXT = (
  "translate English to German: On 3 January, a poor sister tried to return the shelf "
  "to the girls because the hungry brother got to know his police officer."
)


def main(argv: Sequence[str] | None = None) -> int:
  """Decodes the texts of the flags and shows the traces.

  Args:
    argv: the flags; None takes the flags of the process.

  Returns:
    The exit status: 0, or 1 after an error message about the input.
  """
  args = _parser().parse_args(argv)
  try:
    traces = recording.load(args.run) if args.run else _record(args)
    _write(args, traces)
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  for trace in traces:
    _print(trace)
  return 0


def _print(trace: Trace) -> None:
  show = render.to_ansi if sys.stdout.isatty() else render.to_plain
  print(show(trace.turns), end="")
  print(f"{trace.num_tokens} tokens in {len(trace.turns)} calls of the target")


def _write(args: argparse.Namespace, traces: Sequence[Trace]) -> None:
  if args.record:
    recording.save(traces, args.record)
  if args.svg:
    title = textwrap.shorten(traces[0].text, 90, placeholder=" ...")
    epath.Path(args.svg).write_text(render.to_svg(traces[0], title))
  if args.html:
    epath.Path(args.html).write_text(page.to_html(traces))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add_flags(
    parser,
    {
      "text": ([TEXT], "inputs, including the models' prefix"),
      "target": (embedded.target(), "checkpoint"),
      "draft": (embedded.draft(), "checkpoint"),
      "vocabulary": (embedded.vocabulary(), "of both"),
      "gamma": DEFAULT_GAMMA,
      "temperature": 0.0,
      "seed": 0,
      "rule": ("token", "of verification"),
      "num_candidates": (1, "number of drafts per call, for tree rules"),
      "svg": (str, "file of the image", {"metavar": "FILE"}),
      "html": (str, "file of the page", {"metavar": "FILE"}),
      "record": (str, "file for the traces", {"metavar": "FILE"}),
      "run": (
        str,
        "file of earlier traces to show, without decoding",
        {"metavar": "FILE"},
      ),
    },
  )
  return parser


def _record(args: argparse.Namespace) -> list[Trace]:
  sampling = specdec_t5x.Sampling(args.temperature)
  names = ("vocabulary", "target", "draft")
  hints.check_exist({name: getattr(args, name) for name in names})
  return recording.record(
    args.text,
    specdec_t5x.load_model(args.target),
    specdec_t5x.load_model(args.draft),
    args.vocabulary,
    gamma=args.gamma,
    rule=args.rule,
    num_candidates=args.num_candidates,
    sampling=sampling,
    seed=args.seed,
  )


if __name__ == "__main__":
  sys.exit(main())
