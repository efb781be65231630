"""Our own kernels for CPUs: compiled where they run, once, and kept.

They are compiled for the very processor, so a package can't bring them along.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import warnings

import jax

SOURCES = sorted(pathlib.Path(__file__).parent.glob("*.cc"))
_HEADERS = sorted(pathlib.Path(__file__).parent.glob("*.h"))
TARGETS = ("specdec_multiply", "specdec_normalize", "specdec_attention", "specdec_laws")
# No -ffast-math: sums keep their order, and NaN stays NaN.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-w")
_COMPILERS = ("c++", "g++", "clang++")


@functools.cache
def problem() -> str | None:
  """Returns why there are no kernels here; None where there are, ready to be called."""
  if jax.default_backend() != "cpu":
    return f"the devices are {jax.default_backend()}s; they are for CPUs"
  if jax.device_count() > 1:
    return f"there are {jax.device_count()} devices; XLA can't divide them"
  try:
    library = ctypes.CDLL(str(built()))
  except (OSError, subprocess.SubprocessError) as error:
    reason = f"they could not be built: {_first_lines(error)}"
    warnings.warn(f"Decoding without native products: {reason}", stacklevel=2)
    return reason
  for name in TARGETS:
    handler = jax.ffi.pycapsule(getattr(library, name))
    jax.ffi.register_ffi_target(name, handler, platform="cpu")
  return None


def built() -> pathlib.Path:
  """Returns the library for this machine, built where it is not there yet.

  Raises:
    OSError: where there is no compiler, or nowhere to keep the library.
    subprocess.SubprocessError: where the compiler fails.
  """
  found = next(filter(shutil.which, _COMPILERS), "")
  compiler = shlex.split(os.environ.get("CXX") or found)  # As in "ccache g++".
  if not compiler:
    raise OSError(f"no C++ compiler ({', '.join(_COMPILERS)}, or CXX)")
  include = jax.ffi.include_dir()
  # What the compiler takes this processor for is part of the name, as the source is.
  machine = _run(*compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull)
  headers = b"".join(p.read_bytes() for p in sorted(pathlib.Path(include).rglob("*.h")))
  digest = hashlib.sha256(code() + headers + machine).hexdigest()[:16]
  library = folder() / f"kernels-{digest}.so"
  if not library.exists():
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
      # Whole, or not at all, whoever else builds it.
      made = pathlib.Path(scratch) / library.name
      sources = map(str, SOURCES)
      _run(*compiler, *_FLAGS, "-shared", f"-I{include}", *sources, "-o", str(made))
      made.replace(library)
  return library


def code() -> bytes:
  """Returns what is compiled."""
  return b"".join(path.read_bytes() for path in (*SOURCES, *_HEADERS))


def folder() -> pathlib.Path:
  """Returns where compiled code is kept: SPECDEC_T5X_CACHE, or the user's cache."""
  default = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  home = os.environ.get("SPECDEC_T5X_CACHE") or os.path.join(default, "specdec_t5x")
  return pathlib.Path(home).expanduser()


def _run(*command: str) -> bytes:
  return subprocess.run(command, check=True, capture_output=True).stdout


def _first_lines(error: Exception) -> str:
  output = getattr(error, "stderr", None) or b""
  return " ".join([str(error), *output.decode(errors="replace").splitlines()[:3]])
