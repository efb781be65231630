"""Shows how speculative decoding works on one text, as the paper's figure 1 does.

  python scripts/show_trace.py \
    --text "translate English to German: Jan visited two old teachers."

A line shows one iteration, with one call of the target: the accepted tokens, the first
rejected token, and the recovered or bonus token. Without a terminal, marks replace the
colours. --svg=FILE draws the first trace as an image with p, q, uniforms and times.
--html=FILE writes all traces as a page for a browser.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

from etils import epath

import specdec_t5x
from specdec_t5x.demo import embedded
from specdec_t5x.trace import recording, render

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
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  add = parser.add_argument
  add("--text", nargs="+", default=[TEXT], help="inputs, with the models' prefix")
  add("--target", default=embedded.target(), help="checkpoint (%(default)s)")
  add("--draft", default=embedded.draft(), help="checkpoint (%(default)s)")
  add("--vocabulary", default=embedded.vocabulary(), help="of both (%(default)s)")
  add("--gamma", type=int, default=5, help="drafted tokens per call (%(default)s)")
  add("--temperature", type=float, default=0.0, help="0 is greedy (%(default)s)")
  add("--seed", type=int, default=0, help="seed of the sampling (%(default)s)")
  add("--rule", default="token", help="of verification (%(default)s)")
  add("--num-candidates", type=int, default=1, help="drafts per call, for tree rules")
  add("--svg", metavar="FILE", help="file of the image")
  add("--html", metavar="FILE", help="file of the page")
  args = parser.parse_args(argv)
  try:
    traces = recording.record(
      args.text,
      specdec_t5x.load_model(args.target),
      specdec_t5x.load_model(args.draft),
      args.vocabulary,
      gamma=args.gamma,
      rule=args.rule,
      num_candidates=args.num_candidates,
      sampling=specdec_t5x.Sampling(args.temperature),
      seed=args.seed,
    )
    if args.svg:
      epath.Path(args.svg).write_text(render.to_svg(traces[0]))
    if args.html:
      epath.Path(args.html).write_text(render.to_html(traces))
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  for trace in traces:
    print(render.to_text(trace.turns, colours=sys.stdout.isatty()), end="")
    print(f"{trace.num_tokens} tokens in {len(trace.turns)} calls of the target")
  return 0


if __name__ == "__main__":
  sys.exit(main())
