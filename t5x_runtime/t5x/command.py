"""Flags, gin and messages of `python -m t5x.infer` and `python -m t5x.eval`."""

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

from t5x import gin_utils, hosts, quiet_start

with epy.lazy_imports():
  import seqio

# The parent folder of the t5x package, where gin files are also searched.
_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def define_flags() -> None:
  """Defines the flags of both commands."""
  flags.DEFINE_multi_string("gin_file", None, "A gin file; later files win.")
  flags.DEFINE_multi_string("gin_bindings", [], "A gin binding; --gin.NAME=VALUE.")
  flags.DEFINE_list(
    "gin_search_paths", ["."], "Folders to search for relative gin files."
  )
  flags.DEFINE_string("tfds_data_dir", None, "Folder of the prepared TFDS datasets.")
  hosts.define_flags()


def start(main: Callable[[Sequence[str]], None]) -> None:
  """Runs `main` as a command, with warnings and errors as the only log messages."""
  # Traces make many lasting objects. With Python's thresholds, garbage collection takes
  # a tenth of the start.
  gc.set_threshold(50_000, 20, 50)
  logging.set_verbosity(logging.WARNING)
  gin_utils.run(main)


def run(
  name: str, work: Callable[..., None], argv: Sequence[str], **flag_values: Any
) -> None:
  """Parses gin and runs `work` with gin's bindings; prints a ValueError in short.

  Args:
    name: the command's name.
    work: the command's function, a gin configurable.
    argv: the command line without flags.
    **flag_values: arguments of `work` from flags; None keeps gin's binding.
  """
  if len(argv) > 1:
    sys.exit(
      f"{name}: expected flags alone, got {argv[1:]}. Write settings as "
      "--gin.NAME=VALUE."
    )
  import gin

  values = flags.FLAGS
  if not values.gin_file:
    sys.exit(f"{name}: expected --gin_file=<file>, got none. Give a file of configs/.")
  if values.tfds_data_dir:
    quiet_start.import_seqio()
    seqio.set_tfds_data_dir_override(os.path.expanduser(values.tfds_data_dir))
  try:
    hosts.connect()
    gin.configurable(work)
    # Entry points of other packages are functions that return a folder of gin files.
    entry_points = importlib.metadata.entry_points(group="t5x.gin_search_paths")
    packages = [entry_point.load()() for entry_point in entry_points]
    folders = [*values.gin_search_paths, _PACKAGE_PARENT, *packages]
    gin_utils.parse_gin_flags(folders, values.gin_file, values.gin_bindings)
    set_by_flags = {name: x for name, x in flag_values.items() if x is not None}
    # Networks rely on JAX's default promotion, so the user's settings of promotion do
    # not apply here.
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
      work(**{**gin_utils.bound_arguments(work), **set_by_flags})
    gc.freeze()  # Avoids a search for garbage at the end of Python.
  except ValueError as error:
    # The cause is usually invalid input: print the message, and the trace on request.
    if logging.get_verbosity() >= logging.INFO:
      raise
    sys.exit(f"{name}: {gin_utils.one_line(error)}")
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    reason = str(error).splitlines()[0].removesuffix(".")
    sys.exit(
      f"{name}: The device's memory is full: {reason}. Lower BATCH_SIZE or "
      "TASK_FEATURE_LENGTHS, or set PARAM_DTYPE='bfloat16'."
    )
