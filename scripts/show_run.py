"""Shows one or two runs of `t5x.infer` as a page for a browser.

  python scripts/show_run.py runs/demo/ende/spec --html=run.html
  python scripts/show_run.py runs/demo/ende/{baseline,spec} --html=both.html

The page has a dot and a row per sentence, with the tokens per target call and the share
of accepted tokens. With two runs of equal inputs the page marks different outputs.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from specdec_t5x.trace import runs


def main(argv: Sequence[str] | None = None) -> int:
  """Writes the page.

  Args:
    argv: the flags; None takes the flags of the process.

  Returns:
    The exit status: 0, or 1 after an error message about the input.
  """
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("runs", nargs="+", help="INFER_OUTPUT_DIR of one or two runs")
  parser.add_argument("--html", required=True, help="file of the page")
  args = parser.parse_args(argv)
  try:
    found = {folder: runs.load(folder) for folder in args.runs}
    pathlib.Path(args.html).write_text(runs.to_html(found), encoding="utf-8")
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  print(f"Wrote {args.html}.")
  return 0


if __name__ == "__main__":
  sys.exit(main())
