"""Keeps compiled programs between runs, in a folder of the user's, by default.

JAX's own setting, JAX_COMPILATION_CACHE_DIR, wins; empty, it keeps nothing.
SPECDEC_T5X_CACHE, which moves all that specdec_t5x keeps, moves programs with it.
"""

import hashlib
import os
import pathlib
import platform
import warnings

import jax

_LARGEST = 2**30  # Bytes; the programs that were not used for longest go first.
_WORTH_KEEPING = 0.02  # Seconds to compile: to read one takes less.


def keep_programs() -> None:
  """Has JAX keep what it compiles, and use it again."""
  if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return
  try:
    kept = folder()
  except OSError as error:
    warnings.warn(f"Compiled programs are not kept: {error}", stacklevel=2)
    return
  jax.config.update("jax_compilation_cache_dir", str(kept))
  jax.config.update("jax_compilation_cache_max_size", _LARGEST)
  name = "jax_persistent_cache_min_compile_time_secs"
  jax.config.update(name, _WORTH_KEEPING)


def folder() -> pathlib.Path:
  """Returns where programs are kept: one folder for each kind of processor.

  Programs for CPUs are of the very processor, and homes may be shared.

  Raises:
    OSError: where that is in a home folder, and there is none.
  """
  names = ("SPECDEC_T5X_CACHE", "XDG_CACHE_HOME")
  cache = next(filter(None, map(os.environ.get, names)), "~/.cache")
  try:
    home = pathlib.Path(cache).expanduser()
  except RuntimeError as error:
    raise OSError(
      f"there is no home folder for {cache}: set JAX_COMPILATION_CACHE_DIR to a folder"
    ) from error
  digest = hashlib.sha256(_processor().encode()).hexdigest()[:12]
  return home / "t5x_runtime" / f"programs-{digest}"


def _processor() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor()
  wanted = ("model name", "flags", "Features")
  return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
