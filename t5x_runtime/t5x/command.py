"""What `python -m t5x.infer` and `python -m t5x.eval` share: flags, gin, messages."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import flags, logging
from etils import epy

from t5x import gin_utils, hosts, kept_programs, platforms, quiet_start

with epy.lazy_imports():
  import seqio

# gin files are found relative to the folder that holds the t5x package, too.
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Other packages name folders of gin files by functions under these entry points.
_FOLDERS = "t5x.gin_search_paths"


def define_flags() -> None:
  """Defines the flags that both commands have."""
  flags.DEFINE_multi_string("gin_file", None, "A gin file; later ones win.")
  flags.DEFINE_multi_string("gin_bindings", [], "A gin binding; --gin.NAME=VALUE.")
  flags.DEFINE_list("gin_search_paths", ["."], "Where relative gin files are sought.")
  flags.DEFINE_string("tfds_data_dir", None, "Where TFDS datasets are prepared.")
  hosts.define_flags()


def start(main: Callable[[Sequence[str]], None]) -> None:
  """Runs `main` as a command, which says no more than it has to."""
  logging.set_verbosity(logging.WARNING)
  gin_utils.run(main)


def run(
  name: str, work: Callable[..., None], argv: Sequence[str], **given: Any
) -> None:
  """Parses gin and runs `work` with what it binds; a ValueError is a short message.

  Args:
    name: of the command.
    work: a gin configurable of the program.
    argv: what is left of the command line.
    **given: arguments of `work` that flags set; None leaves gin's.
  """
  if len(argv) > 1:
    sys.exit(
      f"{name}: expected flags alone, got {argv[1:]}. Settings are --gin.NAME=VALUE."
    )
  import gin

  values = flags.FLAGS
  if not values.gin_file:
    sys.exit(f"{name}: expected --gin_file=<file>, got none.")
  if values.tfds_data_dir:
    quiet_start.import_seqio()
    seqio.set_tfds_data_dir_override(values.tfds_data_dir)
  kept_programs.keep_programs()
  try:
    hosts.connect()
    platforms.check_platform()
    gin.configurable(work)
    gin_utils.parse_gin_flags(
      [*values.gin_search_paths, _PACKAGE_PARENT, *_folders()],
      values.gin_file,
      values.gin_bindings,
    )
    set_by_flags = {key: value for key, value in given.items() if value is not None}
    # Networks rely on JAX's usual promotion; settings of JAX's are for other code.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
      work(**{**gin_utils.bound_arguments(work), **set_by_flags})
    gc.freeze()  # Python ends now, and would look through all that there is.
  except ValueError as error:
    # Bad input, most often: say what is wrong, and the trace to who asks for it.
    if logging.get_verbosity() >= logging.INFO:
      raise
    message = gin_utils.one_line(error)
    sys.exit(f"{name}: {message}\n(--verbosity=1 shows where this was raised.)")
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    reason = str(error).splitlines()[0].removesuffix(".")
    sys.exit(
      f"{name}: The device's memory is full: {reason}. Lower BATCH_SIZE or "
      "TASK_FEATURE_LENGTHS, or set PARAM_DTYPE='bfloat16'."
    )


def _folders() -> list[str]:
  """Returns the folders of gin files that installed packages name."""
  named = importlib.metadata.entry_points(group=_FOLDERS)
  return [entry.load()() for entry in named]
