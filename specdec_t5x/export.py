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
  **of_runs: Any,
) -> None:
  """Exports what T5X's `infer`, in whose place it stands, would decode with."""
  del of_runs
  rows = model.decoder.slots or dataset_cfg.batch_size
  to = output_dir, platforms, batch_sizes or [rows]
  lengths = dataset_cfg.task_feature_lengths
  model.check_max_length(lengths["targets"])
  exporting.check_export(model, *to)
  exporting.follow_generation(model, restore_checkpoint_cfg)
  params, step = exporting.restored(model, lengths, restore_checkpoint_cfg, partitioner)
  task = seqio.maybe_get_mixture_or_task(dataset_cfg.mixture_or_task_name).name
  about = {"checkpoint_step": step, "configuration": configuration()}
  exporting.export(model, params, lengths, task, *to, **about)


infer = run  # What gin files bind of the command that runs.


def main(argv: Sequence[str] | None = None) -> int:
  """Exports what the flags name; returns the exit status.

  Args:
    argv: the flags; the process's own where None.
  """
  parser = argparse.ArgumentParser(
    prog="python -m specdec_t5x.export",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add, some = parser.add_argument, lambda text: text.split(",")
  add("--output", metavar="DIR", required=True, help="a new folder")
  add("--platforms", type=some, default=["cpu", "tpu", "cuda"], help="(cpu,tpu,cuda)")
  sizes = lambda text: [int(size) for size in some(text)]
  add("--batch_sizes", type=sizes, help="a program each (BATCH_SIZE)")
  add("--gin_file", action="append", help="of t5x.infer; later ones win")
  args, bindings = parser.parse_known_args(argv)
  if not args.gin_file:
    args.gin_file, bindings = _DEMO[:1], [*_DEMO[1:], *bindings]
  try:
    check_platform()
    with exporting.portable():  # As gin makes networks, too, which choose products.
      _parse(args.gin_file, [*bindings, f"--gin.INFER_OUTPUT_DIR={args.output!r}"])
      gin.get_configurable(run)(platforms=args.platforms, batch_sizes=args.batch_sizes)
  except (ValueError, OSError) as error:
    message = " ".join(str(error).partition("\n  In call to configurable")[0].split())
    parser.exit(1, f"specdec_t5x.export: {message}\n")
  print(f"Written: {args.output}")
  return 0


def _parse(gin_files: Sequence[str], bindings: Sequence[str]) -> None:
  """Parses gin as `t5x.infer` does; what it held before is dropped."""
  gin.clear_config()
  gin.configurable(run)
  if surplus := [text for text in bindings if not text.startswith("--gin.")]:
    raise ValueError(f"Expected flags of --help and --gin.NAME=VALUE, got {surplus}.")
  named = [
    text.removeprefix("--gin_bindings=")
    for text in gin_utils.rewrite_gin_args([*bindings])
  ]
  places = [os.path.dirname(os.path.dirname(m.__file__)) for m in (t5x, specdec_t5x)]
  gin_utils.parse_gin_flags([".", *places], [*gin_files], named)


if __name__ == "__main__":
  sys.exit(main())
