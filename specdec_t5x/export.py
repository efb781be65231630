"""Writes a decode as files that run with JAX and NumPy alone.

  python -m specdec_t5x.export --output DIR
  python -m specdec_t5x.export --output DIR --batch_sizes 1,16 --platforms cpu,tpu \
    --gin_file=configs/spec_ende.gin --gin_file=my_pair.gin --gin.GAMMA=7

Takes the gin files and bindings of `python -m t5x.infer`; bare, those of the demo pair
with GAMMA=5. DIR gets a program for each batch size, the parameters, the vocabulary and
export.json; examples/serve_exported.py decodes with them.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  import_quietly("tensorflow")

import gin
import seqio
import t5x
from t5x import gin_utils

import specdec_t5x
from specdec_t5x.platforms import check_platform
from specdec_t5x.t5x_bridge import exporting
from specdec_t5x.t5x_bridge.writer import configuration

_DEMO = ["configs/spec_ende.gin", "--gin.GAMMA=5"]


def run(
  *,
  model: Any,
  dataset_cfg: Any,
  restore_checkpoint_cfg: Any,
  partitioner: Any,
  output_dir: str,
  platforms: Sequence[str],
  batch_sizes: Sequence[int] | None,
  **other_arguments: Any,
) -> None:
  """Exports the decode of a T5X `infer` run; takes the arguments of `infer`."""
  del other_arguments
  if not batch_sizes:
    batch_sizes = [model.decoder.slots or dataset_cfg.batch_size]
  lengths = dataset_cfg.task_feature_lengths
  model.check_max_length(lengths["targets"])
  exporting.check_export(model, output_dir, platforms, batch_sizes)
  exporting.follow_generation(model, restore_checkpoint_cfg)
  params, step = exporting.restored(model, lengths, restore_checkpoint_cfg, partitioner)
  task = seqio.maybe_get_mixture_or_task(dataset_cfg.mixture_or_task_name).name
  about = {"checkpoint_step": step, "configuration": configuration()}
  exporting.export(
    model, params, lengths, task, output_dir, platforms, batch_sizes, **about
  )


infer = run  # gin files bind the arguments of `infer`.


def main(argv: Sequence[str] | None = None) -> int:
  """Exports what the flags name (None: the process's); returns the exit status."""
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.export",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add("--output", metavar="DIR", required=True, help="a new folder")
  add(
    "--platforms",
    type=_names,
    default=["cpu", "tpu", "cuda"],
    help="platforms (cpu,tpu,cuda)",
  )
  add(
    "--batch_sizes",
    type=_sizes,
    help="batch sizes, with a program for every size (BATCH_SIZE)",
  )
  add(
    "--gin_file",
    action="append",
    help="gin files gin files of t5x.infer; later files win",
  )
  args, bindings = parser.parse_known_args(argv)
  if not args.gin_file:
    args.gin_file = _DEMO[:1]
    bindings = [*_DEMO[1:], *bindings]
  try:
    check_platform()
    # Parsing makes networks, and networks choose their products when they are made.
    with exporting.portable():
      _parse(args.gin_file, [*bindings, f"--gin.INFER_OUTPUT_DIR={args.output!r}"])
      gin.get_configurable(run)(platforms=args.platforms, batch_sizes=args.batch_sizes)
  except (ValueError, OSError) as error:
    message = " ".join(str(error).partition("\n  In call to configurable")[0].split())
    parser.exit(1, f"specdec_t5x.export: {message}\n")
  print(f"Written: {args.output}")
  return 0


def _names(text: str) -> list[str]:
  return text.split(",")


def _sizes(text: str) -> list[int]:
  return [int(size) for size in text.split(",")]


def _parse(gin_files: Sequence[str], bindings: Sequence[str]) -> None:
  """Clears gin's configuration and parses gin files as `t5x.infer` does."""
  gin.clear_config()
  gin.configurable(run)
  if surplus := [text for text in bindings if not text.startswith("--gin.")]:
    raise ValueError(
      f"Expected flags of --help and --gin.NAME=VALUE, got {surplus}. Remove unknown "
      "flags."
    )
  gin_bindings = [
    text.removeprefix("--gin_bindings=")
    for text in gin_utils.rewrite_gin_args([*bindings])
  ]
  folders = [os.path.dirname(os.path.dirname(m.__file__)) for m in (t5x, specdec_t5x)]
  gin_utils.parse_gin_flags([".", *folders], [*gin_files], gin_bindings)


if __name__ == "__main__":
  sys.exit(main())
