"""Keeps compiled programs between processes, in Python and under T5X.

JAX's own settings have priority.
"""

import functools
import os
import pathlib
import platform
import warnings

import jax

from specdec_t5x.native import library

# JAX's settings of the programs that are kept: bytes of all programs (those that were
# used least recently are removed), and seconds of compilation (reading is faster).
_SETTINGS = {
  "jax_compilation_cache_max_size": 2**30,
  "jax_persistent_cache_min_compile_time_secs": 0.02,
}
_FOLDER = "jax_compilation_cache_dir"


def keep() -> None:
  """Configures JAX to keep and reuse compiled programs, unless the user has done so."""
  is_set = _FOLDER.upper() in os.environ or jax.config.jax_compilation_cache_dir
  if is_set or (path := _made()) is None:
    return
  for name, value in _SETTINGS.items():
    if name.upper() not in os.environ:
      jax.config.update(name, value)
  jax.config.update(_FOLDER, str(path))


@functools.cache
def _made() -> pathlib.Path | None:
  """Returns the folder after making it; None, with a warning, if that fails.

  Programs for CPUs depend on the kind of processor, and machines may share a home.
  """
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    lines = [platform.processor()]
  fields = ("model name", "flags", "Features")
  kind = "\n".join(sorted({line for line in lines if line.startswith(fields)}))
  try:
    path = library.folder() / f"programs-{library.digest(kind.encode())}"
    path.mkdir(parents=True, exist_ok=True)
    if os.access(path, os.W_OK):
      return path
    reason = f"{path} is not writable"
  except OSError as error:
    reason = str(error)
  warnings.warn(
    f"Compiled programs are not kept: {reason}. Set JAX_COMPILATION_CACHE_DIR to a "
    "folder, or to nothing to keep no programs.",
    stacklevel=6,
  )
  return None
