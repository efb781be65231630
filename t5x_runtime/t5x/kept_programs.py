"""Keeps compiled programs between runs, in a folder of the user's, by default.

JAX's own setting, JAX_COMPILATION_CACHE_DIR, wins; empty, it keeps nothing.
"""

import hashlib
import os
import pathlib
import platform

import jax

_LARGEST = 2**30  # Bytes; the programs that were not used for longest go first.
_WORTH_KEEPING = 0.02  # Seconds to compile: to read one takes less.


def keep_programs() -> None:
  """Has JAX keep what it compiles, and use it again."""
  if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    jax.config.update("jax_compilation_cache_dir", str(folder()))
    jax.config.update("jax_compilation_cache_max_size", _LARGEST)
    name = "jax_persistent_cache_min_compile_time_secs"
    jax.config.update(name, _WORTH_KEEPING)


def folder() -> pathlib.Path:
  """Returns where programs are kept: one folder for each kind of processor.

  Programs for CPUs are of the very processor, and homes may be shared.
  """
  cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  digest = hashlib.sha256(_processor().encode()).hexdigest()[:12]
  return pathlib.Path(cache).expanduser() / "t5x_runtime" / f"programs-{digest}"


def _processor() -> str:
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
  except OSError:
    return platform.processor()
  wanted = ("model name", "flags", "Features")
  return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
