"""Trains drafts and small targets: `python -m specdec_t5x.train --gin_file=...`.

Checkpoints are T5X's, so `python -m t5x.infer` and `specdec_t5x.load_model` read them.
With --job=distil the command improves a draft on a text file: it decodes the texts with
the target, trains the draft on the outputs, and reports the gain. With --job=heads it
trains drafts that read a target; with --job=decode it writes a target's outputs for a
task's inputs; with --job=ngrams it counts the targets' n-grams into a table that
drafts, with --job=trim the tokens that a draft is trimmed to. The jobs themselves:
`specdec_t5x.training.jobs` and `distil`.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

if __name__ == "__main__":
  from specdec_t5x.quiet import import_quietly

  with contextlib.suppress(ImportError):  # Upstream T5X has no such module.
    from t5x import messages

    messages.protect("specdec_t5x.train")
  import_quietly("tensorflow")

import gin
import seqio
from absl import flags, logging
from t5x import gin_utils

from specdec_t5x.platforms import check_platform
from specdec_t5x.t5x_bridge.macros import macro_names
from specdec_t5x.training.distil import distil
from specdec_t5x.training.jobs import (
  count_ngrams,
  decode_task,
  train,
  train_heads,
  trim_draft,
)

# gin files bind these as train.train, train.decode_task and so on.
JOBS = {
  "train": train,
  "decode": decode_task,
  "distil": distil,
  "heads": train_heads,
  "ngrams": count_ngrams,
  "trim": trim_draft,
}
# Relative gin files are also searched in the folder that holds the package.
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(
  job: str,
  gin_files: Sequence[str],
  gin_bindings: Sequence[str] = (),
  gin_search_paths: Sequence[str] = (".",),
) -> None:
  """Clears gin's configuration, parses gin files and bindings, and runs a job."""
  gin.clear_config()
  paths = [*gin_search_paths, _PACKAGE_PARENT]
  gin_utils.parse_gin_flags(paths, [*gin_files], [*gin_bindings])
  with macro_names():
    gin.get_configurable(JOBS[job])()


def define_flags() -> None:
  """Defines the command's flags."""
  about = "The job: train, distil a draft, train heads, decode a task, and so on."
  flags.DEFINE_enum("job", "train", list(JOBS), about)
  flags.DEFINE_multi_string("gin_file", None, "A gin file; later files win.")
  flags.DEFINE_multi_string("gin_bindings", [], "A gin binding; --gin.NAME=VALUE.")
  flags.DEFINE_list(
    "gin_search_paths", ["."], "Folders to search for relative gin files."
  )
  flags.DEFINE_string("tfds_data_dir", None, "Folder of the prepared TFDS datasets.")


def main(argv: Sequence[str]) -> None:
  """Parses gin and runs the job; bad input becomes a short message."""
  if len(argv) > 1:
    sys.exit(f"specdec_t5x.train: expected flags alone, got {argv[1:]}.")
  values = flags.FLAGS
  if not values.gin_file:
    sys.exit(
      "specdec_t5x.train: expected --gin_file=<file>, got none. Give a file of "
      "configs/."
    )
  if values.tfds_data_dir:
    seqio.set_tfds_data_dir_override(os.path.expanduser(values.tfds_data_dir))
  try:
    check_platform()
    run(values.job, values.gin_file, values.gin_bindings, values.gin_search_paths)
  except (ValueError, FloatingPointError) as error:
    # Most errors are bad input: the message suffices, unless --verbosity=1 is set.
    if logging.get_verbosity() >= logging.INFO:
      raise
    message = " ".join(str(error).partition("\n  In call to configurable")[0].split())
    sys.exit(f"specdec_t5x.train: {message}")


if __name__ == "__main__":
  define_flags()
  logging.set_verbosity(logging.WARNING)
  gin_utils.run(main)
