"""Flags that say which pairs are measured, on what, and how long."""

import argparse

PRESETS = ("demo", "paper")


def add_pairs(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that name models and inputs."""
  # Of a demo pair; a command that has n-grams, or heads, sets it.
  parser.set_defaults(with_tables=False, with_heads=False)
  group = parser.add_argument_group("what is measured")
  add = group.add_argument
  add(
    "--preset",
    choices=PRESETS,
    help="demo: the pairs of `make demo`, the default without --target; paper: T5 1.1 "
    "XXL in bfloat16 on WMT14 EnDe and CNN/DailyMail",
  )
  add("--tasks", nargs="+", metavar="TASK", help="of a preset: ende, cnndm; demo: lm")
  add(
    *("--target", "--targets"),
    nargs="+",
    metavar="[TASK:]DIR",
    help="checkpoint; with TASK: of one task of a preset",
  )
  add(
    *("--draft", "--drafts"),
    nargs="+",
    action="extend",
    metavar="[TASK:]NAME=DIR",
    help="checkpoint or n-gram table (DIR@2: its bigrams), several allowed; `copy` "
    "copies from the input. "
    "With --preset demo, beside the demo's own",
  )
  add("--task", default="yours", help="name of the task of --inputs (%(default)s)")
  add_texts(group, count=None)
  add(
    "--prompts",
    action="store_true",
    help="--inputs are prompts of decoder-only networks: no end of sequence",
  )
  add("--max-length", type=int, help="room for an output, in tokens")
  add("--dtype", help="of parameters and activations (paper: bfloat16, else float32)")
  add("--tfds-data-dir", metavar="DIR", help="where TFDS datasets are prepared")


def add_one_pair(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that name one target, one draft and a file of inputs."""
  add = parser.add_argument
  add("--target", metavar="DIR", required=True, help="checkpoint")
  add("--draft", metavar="DIR", required=True, help="checkpoint")
  add_texts(parser, required=True)
  add("--max-length", type=int, default=64, help="room for an output (%(default)s)")


def add_texts(
  parser: argparse._ActionsContainer, required: bool = False, count: int | None = 100
) -> None:
  """Adds the flags of `inputs.lines`; `count` is how many it reads by default."""
  parser.set_defaults(prompts=False)
  add = parser.add_argument
  add("--vocabulary", metavar="FILE", required=required, help="a SentencePiece model")
  add("--inputs", metavar="FILE", required=required, help="an input a line")
  add("--prefix", default="", help="before each line of --inputs")
  about = "at most the first so many (%(default)s)"
  add("--num-inputs", type=int, default=count, help=about)


def add_measuring(parser: argparse.ArgumentParser) -> None:
  """Adds the flags that say how much is measured."""
  add = parser.add_argument_group("how").add_argument
  add(
    "--num-tokens",
    type=int,
    help="output tokens a cell is measured over (paper: 10000, else 2000)",
  )
  add("--runs", type=int, default=15, help="of each part's clock (%(default)s)")
  add(
    "--recorded",
    action="store_true",
    help="measure nothing: show what --output has, the rest as not measured",
  )


def add_cells(parser: argparse.ArgumentParser) -> None:
  """Adds the flags of what measures cells: `add_pairs`, how much, and --output."""
  add_pairs(parser)
  add_measuring(parser)
  add_output(parser)


def add_temperatures(parser: argparse.ArgumentParser) -> None:
  """Adds the temperatures of a table."""
  add = parser.add_argument
  add("--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="(%(default)s)")


def add_output(
  parser: argparse.ArgumentParser, default: str | None = "runs/reproduce"
) -> None:
  """Adds the folder that everything is written to; needed where there is no default."""
  about = "for cells.jsonl, and a JSON, CSV and Markdown file each"
  parser.add_argument(
    "--output",
    metavar="DIR",
    default=default,
    required=default is None,
    help=f"{about} (%(default)s)" if default else "for JSON, CSV and Markdown",
  )
