"""Keeps compiled programs between runs, by default in a folder of the user's home.

JAX's own setting, JAX_COMPILATION_CACHE_DIR, has priority; an empty setting keeps no
programs. SPECDEC_T5X_CACHE moves all files that specdec_t5x keeps, including programs.
"""

import hashlib
import os
import pathlib
import platform
import warnings

import jax

_LARGEST = 2**30  # Bytes of all programs; the least recently used are removed first.
_WORTH_KEEPING = 0.02  # Seconds of compilation; reading a program is faster.


def keep_programs() -> None:
  """Configures JAX to keep and reuse compiled programs."""
  if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    return
  try:
    cache_dir = folder()
    cache_dir.mkdir(parents=True, exist_ok=True)
    if not os.access(cache_dir, os.W_OK):
      raise PermissionError(f"{cache_dir} is not writable. Set SPECDEC_T5X_CACHE")
  except OSError as error:
    warnings.warn(f"Compiled programs are not kept: {error}", stacklevel=2)
    return
  jax.config.update("jax_compilation_cache_dir", str(cache_dir))
  jax.config.update("jax_compilation_cache_max_size", _LARGEST)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)


def folder() -> pathlib.Path:
  """Returns the folder of programs, with a different folder per kind of processor.

  Programs for CPUs depend on the kind of processor, and machines may share a home.

  Raises:
    OSError: if the folder is in a home folder, and there is no home folder.
  """
  names = ("SPECDEC_T5X_CACHE", "XDG_CACHE_HOME")
  cache = next(filter(None, map(os.environ.get, names)), "~/.cache")
  try:
    home = pathlib.Path(cache).expanduser()
  except RuntimeError as error:
    raise OSError(
      f"no home folder for {cache} exists: set JAX_COMPILATION_CACHE_DIR to a folder"
    ) from error
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    fields = ("model name", "flags", "Features")
    processor = "\n".join(sorted({line for line in lines if line.startswith(fields)}))
  except OSError:
    processor = platform.processor()
  digest = hashlib.sha256(processor.encode()).hexdigest()[:12]
  return home / "t5x_runtime" / f"programs-{digest}"
