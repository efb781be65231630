"""gin on the command line, and a record of the configuration in the output."""

from collections.abc import Callable, Sequence

import gin
import jax
from absl import app, logging
from etils import epath


def parse_gin_flags(
  gin_search_paths: Sequence[str],
  gin_files: Sequence[str],
  gin_bindings: Sequence[str],
  skip_unknown: bool | Sequence[str] = False,
  finalize_config: bool = True,
) -> None:
  """Parses gin files in order, then bindings; later ones win.

  Args:
    gin_search_paths: prefixes that relative file names are tried under, in order.
    gin_files: files.
    gin_bindings: single bindings, `NAME = value`.
    skip_unknown: whether unknown names are skipped, or which.
    finalize_config: whether the configuration is locked afterwards.
  """
  for path in gin_search_paths:
    gin.add_config_file_search_path(path)
  gin.parse_config_files_and_bindings(
    gin_files, gin_bindings, skip_unknown=skip_unknown, finalize_config=finalize_config
  )
  logging.info("gin configuration:\n%s", gin.config_str())


def rewrite_gin_args(args: Sequence[str]) -> list[str]:
  """Returns the arguments with `--gin.NAME=VALUE` as `--gin_bindings=NAME = VALUE`.

  Raises:
    ValueError: where such an argument has no value.
  """
  return [_rewrite(arg) for arg in args]


def _rewrite(arg):
  if not arg.startswith("--gin."):
    return arg
  name, equals, value = arg.removeprefix("--gin.").partition("=")
  if not equals:
    raise ValueError(f"Expected --gin.<name>=<value>, got {arg}")
  return f"--gin_bindings={name} = {value}"


def summarize_gin_config(model_dir: str, summary_writer, step: int) -> None:
  """Writes the configuration to `model_dir`/config.gin, from the first process.

  Args:
    model_dir: a directory, made if need be.
    summary_writer: must be None: TensorBoard is a matter of training.
    step: unused.
  """
  del step
  if summary_writer is not None:
    raise ValueError("summary_writer must be None: this t5x only runs inference.")
  if jax.process_index() == 0:
    directory = epath.Path(model_dir)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.gin").write_text(gin.config_str())


def run(main: Callable[[Sequence[str]], None]) -> None:
  """Runs `main` as a command whose flags may be gin bindings."""
  app.run(
    main, flags_parser=lambda args: app.parse_flags_with_usage(rewrite_gin_args(args))
  )


# Small functions for gin files, registered because gin has no expressions.


@gin.configurable
def sum_fn(var1=gin.REQUIRED, var2=gin.REQUIRED):
  """Returns var1 + var2."""
  return var1 + var2


@gin.configurable
def bool_fn(var1=gin.REQUIRED):
  """Returns the truth of var1."""
  return bool(var1)


@gin.configurable
def string_split_fn(text=gin.REQUIRED, separator=gin.REQUIRED, maxsplit=-1, index=None):
  """Returns the parts of `text`, or the one at `index`."""
  parts = text.split(separator, maxsplit)
  return parts if index is None else parts[index]
