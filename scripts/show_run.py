"""Shows runs of `t5x.infer` in a table, with the tokens per target call.

  python scripts/show_run.py runs/demo/ende/baseline runs/demo/ende/spec

Runs of equal inputs are compared: `equal` counts the outputs that are the first run's,
token for token; '-' is for runs with another number of outputs per input. `accepted` is
the share of the tested drafted tokens.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

HEADS = "sentences", "tokens", "calls", "tokens/call", "accepted", "equal"


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the table.

  Args:
    argv: the flags; None takes the flags of the process.

  Returns:
    The exit status: 0, or 1 after an error message about the input.
  """
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("runs", nargs="+", help="INFER_OUTPUT_DIR of finished runs")
  args = parser.parse_args(argv)
  try:
    runs = {folder: load(folder) for folder in args.runs}
    first = runs[args.runs[0]]
    if any(inputs(run) != inputs(first) for run in runs.values()):
      raise ValueError(
        f"{' and '.join(runs)} have different inputs. Compare runs of one task and one "
        "split."
      )
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  column = max(map(len, runs)) + 2
  print(" " * column + "".join(f"{head:>12}" for head in HEADS))
  for name, run in runs.items():
    print(f"{name:<{column}}" + "".join(f"{x:>12}" for x in row(run, first)))
  return 0


def load(folder: str) -> list[dict[str, Any]]:
  """Returns the examples of a finished run, in the order of the run's file.

  Raises:
    ValueError: if the folder does not have exactly one file of a finished run, or if a
      line of the file is no example.
  """
  files = sorted(pathlib.Path(folder).glob("*.jsonl-00000-of-00001"))
  if len(files) != 1:
    raise ValueError(
      f"{folder}: expected the INFER_OUTPUT_DIR of one finished run of t5x.infer, with "
      f"one file *.jsonl-00000-of-00001, found {len(files)} files. Join the files of "
      "several shards."
    )
  examples = []
  for number, line in enumerate(files[0].read_text("utf-8").splitlines(), 1):
    try:
      examples.append(json.loads(line))
      row(examples[-1:], examples[-1:])
      inputs(examples[-1:])
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(
        f"{files[0]}, line {number}: expected an example written by t5x.infer with the "
        f"statistics of specdec_t5x's models, got {line[:80]!r}."
      ) from error
  return examples


def inputs(run: Sequence[dict[str, Any]]) -> list[str]:
  """Returns the texts of the inputs."""
  return [example["inputs"]["inputs_pretokenized"] for example in run]


def row(run: Sequence[dict[str, Any]], first: Sequence[dict[str, Any]]) -> list[str]:
  """Returns the numbers of a run; counts sum over several decodes of an input."""
  counts = [
    sum(np.sum(example["aux"][name]) for example in run)
    for name in ("tokens", "target_calls", "accepted", "acceptance_positions")
  ]
  tokens, calls, accepted, tested = map(int, counts)
  pairs = zip(run, first, strict=False)
  equal = sum(a["prediction_tokens"] == b["prediction_tokens"] for a, b in pairs)
  decodes = {np.shape(x["aux"]["tokens"]) for x in (*run[:1], *first[:1])}
  rate = f"{tokens / max(calls, 1):.2f}"
  share = f"{accepted / tested:.2f}" if tested else "-"
  equal = str(equal) if len(decodes) < 2 else "-"
  return [str(len(run)), str(tokens), str(calls), rate, share, equal]


if __name__ == "__main__":
  sys.exit(main())
