"""Our kernels for CPUs: compiled once on the machine that runs them, and kept.

The code depends on the processor, so a package can't contain the compiled kernels.
"""

import ctypes
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence

import jax

from specdec_t5x import console

SOURCES = sorted(pathlib.Path(__file__).parent.glob("*.cc"))
_HEADERS = sorted(pathlib.Path(__file__).parent.glob("*.h"))
TARGETS = (
  "specdec_multiply",
  "specdec_by_rows",
  "specdec_rounded",
  "specdec_certified",
  "specdec_normalize",
  "specdec_attention",
  "specdec_adjust",
)
# No -ffast-math: sums keep their order, and NaN stays NaN.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-w")
_COMPILERS = ("c++", "g++", "clang++")
_registered: set[tuple[str, str]] = set()  # Names and platforms of XLA's kernels.


def computed_once(function: Callable) -> Callable:
  """Returns `functools.cache` of a function, which one thread computes at a time."""
  cached = functools.cache(function)
  lock = threading.RLock()

  @functools.wraps(function)
  def locked(*args):
    with lock:
      return cached(*args)

  locked.cache_clear = cached.cache_clear
  return locked


@computed_once
def problem() -> str | None:
  """Returns why there are no kernels here, or None after registering the kernels."""
  if jax.default_backend() != "cpu":
    return f"the devices are {jax.default_backend()}s; native products are for CPUs"
  if jax.device_count() > 1:
    return f"there are {jax.device_count()} devices; XLA can't divide native kernels"
  try:
    library = ctypes.CDLL(str(built()))
  except (OSError, subprocess.SubprocessError) as error:
    output = (getattr(error, "stderr", None) or b"").decode(errors="replace")
    reason = " ".join([f"the build failed: {error}", *output.splitlines()[:3]])
    warnings.warn(f"Decoding without native products: {reason}", stacklevel=2)
    return reason
  register(library, TARGETS, "cpu")
  return None


def register(library: ctypes.CDLL, targets: Sequence[str], platform: str) -> None:
  """Registers kernels in XLA, once per process: XLA refuses a second registration.

  Args:
    library: the library with the kernels.
    targets: names of the kernels.
    platform: XLA's name of the platform.
  """
  for name in targets:
    if (name, platform) not in _registered:
      handler = jax.ffi.pycapsule(getattr(library, name))
      jax.ffi.register_ffi_target(name, handler, platform=platform)
      _registered.add((name, platform))


@functools.cache
def bytes_by() -> str:
  """Returns the name of the method for products of bytes here. Needs kernels."""
  name = ctypes.CDLL(str(built())).specdec_bytes
  name.restype = ctypes.c_char_p
  return name().decode()


def built() -> pathlib.Path:
  """Returns the library for this machine, and builds a missing or damaged library.

  Raises:
    OSError: if there is no compiler, or no folder to keep the library.
    subprocess.SubprocessError: if the compiler fails.
  """
  compiler = _compiler()
  include = jax.ffi.include_dir()
  # The name depends on the source and on the compiler's macros for this processor.
  machine = run(*compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull)
  headers = b"".join(p.read_bytes() for p in sorted(pathlib.Path(include).rglob("*.h")))
  name = f"kernels-{digest(code() + headers + machine)}"

  def make(path):
    sources = map(str, SOURCES)
    run(*compiler, *_FLAGS, "-shared", f"-I{include}", *sources, "-o", str(path))

  return kept_or_made(name, make)


def kept_or_made(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """Returns the library kept under a name, and makes a missing or damaged library.

  Args:
    name: name with the digest of all inputs of the build.
    make: function that writes the library to a path.

  Raises:
    OSError: if there is no folder to keep the library.
  """
  cache = folder()
  for library in cache.glob(f"{name}-*.so"):
    # Loading a library that is damaged, for example because the machine stopped, would
    # crash this process.
    if library.stem == f"{name}-{digest(library.read_bytes())}":
      return library
  console.stage("Compiling kernels for this machine: once.")
  try:
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
      built_library = pathlib.Path(scratch) / "kernels.so"
      make(built_library)
      contents = digest(built_library.read_bytes())
      # The move is atomic, because another process may build the library, too.
      return built_library.replace(cache / f"{name}-{contents}.so")
  except OSError as error:
    raise OSError(f"{error}; SPECDEC_T5X_CACHE names another folder") from error


def code() -> bytes:
  """Returns the compiled source code."""
  return b"".join(path.read_bytes() for path in (*SOURCES, *_HEADERS))


def folder() -> pathlib.Path:
  """Returns the folder of compiled code: SPECDEC_T5X_CACHE, or the user's cache.

  Raises:
    OSError: if the folder is in a home folder, and there is no home folder.
  """
  default = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  home = os.environ.get("SPECDEC_T5X_CACHE") or os.path.join(default, "specdec_t5x")
  try:
    return pathlib.Path(home).expanduser()
  except RuntimeError as error:
    raise OSError(
      f"no home folder for {home} exists: set SPECDEC_T5X_CACHE to a folder"
    ) from error


def cpus() -> int:
  """Returns the number of CPUs that this process may use, after any pinning."""
  if hasattr(os, "sched_getaffinity"):  # Not on macOS.
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _compiler() -> list[str]:
  command = os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), "")
  if not command.strip():
    raise OSError(f"no C++ compiler ({', '.join(_COMPILERS)}, or CXX)")
  return command.split()  # As in "ccache g++".


def digest(contents: bytes) -> str:
  """Returns a short digest of contents."""
  return hashlib.sha256(contents).hexdigest()[:16]


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file of the cache atomically."""
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_suffix(f".{os.getpid()}.tmp")
  partial.write_text(text)
  partial.replace(path)


def run(*command: str) -> bytes:
  """Runs a command and returns its output."""
  return subprocess.run(command, check=True, capture_output=True).stdout
