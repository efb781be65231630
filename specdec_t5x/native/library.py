"""Our own kernels for CPUs: compiled where they run, once, and kept.

They are compiled for the very processor, so a package can't bring them along.
"""

import contextlib
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
from collections.abc import Callable, Iterator

import jax

SOURCES = sorted(pathlib.Path(__file__).parent.glob("*.cc"))
_HEADERS = sorted(pathlib.Path(__file__).parent.glob("*.h"))
TARGETS = (
  *("specdec_multiply", "specdec_by_rows", "specdec_rounded", "specdec_certified"),
  *("specdec_normalize", "specdec_attention", "specdec_adjust"),
)
# No -ffast-math: sums keep their order, and NaN stays NaN.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fPIC", "-w")
_COMPILERS = ("c++", "g++", "clang++")
_left_out: list[str] = []  # Why programs that are traced now shall have none.


def why_left_out() -> str | None:
  """Returns why programs that are traced now shall have no kernels, if there is one."""
  return _left_out[-1] if _left_out else None


@functools.cache
def problem() -> str | None:
  """Returns why there are no kernels here; None where there are, ready to be called."""
  if reason := why_left_out():
    return reason
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


@contextlib.contextmanager
def left_out(reason: str) -> Iterator[None]:
  """Has no kernels in what is traced meanwhile: in programs for other machines.

  JAX forgets what it has traced, with kernels before, without them after.

  Args:
    reason: what `problem` says meanwhile.
  """
  _left_out.append(reason)
  _forget()
  try:
    yield
  finally:
    _left_out.pop()
    _forget()


def _forget() -> None:
  problem.cache_clear()
  jax.clear_caches()


@functools.cache
def bytes_by() -> str:
  """Returns how products of bytes are computed here, where there are kernels."""
  name = ctypes.CDLL(str(built())).specdec_bytes
  name.restype = ctypes.c_char_p
  return name().decode()


def built() -> pathlib.Path:
  """Returns the library for this machine, built where it is not there, whole, yet.

  Raises:
    OSError: where there is no compiler, or nowhere to keep the library.
    subprocess.SubprocessError: where the compiler fails.
  """
  compiler = _compiler()
  include = jax.ffi.include_dir()
  # What the compiler takes this processor for is part of the name, as the source is.
  machine = run(*compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull)
  headers = b"".join(p.read_bytes() for p in sorted(pathlib.Path(include).rglob("*.h")))
  name = f"kernels-{digest(code() + headers + machine)}"

  def make(path):
    sources = map(str, SOURCES)
    run(*compiler, *_FLAGS, "-shared", f"-I{include}", *sources, "-o", str(path))

  return kept_or_made(name, make)


def kept_or_made(name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
  """Returns the library kept under this name, made if it is not there, whole, yet.

  Args:
    name: contains the digest of everything that the library is made from.
    make: writes the library to a path.

  Raises:
    OSError: if there is nowhere to keep the library.
  """
  kept = folder()
  for library in kept.glob(f"{name}-*.so"):
    # To load a damaged one would end this process.
    if library.stem == f"{name}-{digest(library.read_bytes())}":
      return library
  try:
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as scratch:
      made = pathlib.Path(scratch) / "kernels.so"
      make(made)
      return _keep(made, name)
  except OSError as error:
    raise OSError(f"{error}; SPECDEC_T5X_CACHE names another folder") from error


def code() -> bytes:
  """Returns what is compiled."""
  return b"".join(path.read_bytes() for path in (*SOURCES, *_HEADERS))


def folder() -> pathlib.Path:
  """Returns where compiled code is kept: SPECDEC_T5X_CACHE, or the user's cache.

  Raises:
    OSError: where that is in a home folder, and there is none.
  """
  default = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
  home = os.environ.get("SPECDEC_T5X_CACHE") or os.path.join(default, "specdec_t5x")
  try:
    return pathlib.Path(home).expanduser()
  except RuntimeError as error:
    raise OSError(
      f"there is no home folder for {home}: set SPECDEC_T5X_CACHE to a folder"
    ) from error


def cpus() -> int:
  """Returns how many CPUs this process may use; it may be pinned to some of them."""
  if hasattr(os, "sched_getaffinity"):  # Not on macOS.
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _compiler() -> list[str]:
  command = os.environ.get("CXX") or next(filter(shutil.which, _COMPILERS), "")
  try:
    words = shlex.split(command)  # As in "ccache g++".
  except ValueError as error:
    raise OSError(
      f"CXX={command!r} is no command: {error}. Name a compiler, as in CXX=g++"
    ) from error
  if not words:
    raise OSError(f"no C++ compiler ({', '.join(_COMPILERS)}, or CXX)")
  return words


def _keep(made: pathlib.Path, name: str) -> pathlib.Path:
  """Moves a library, whole or not at all, to a name that has its digest.

  So it does not matter who else builds it at the same time, nor when the machine stops.
  """
  library = made.parents[1] / f"{name}-{digest(made.read_bytes())}.so"
  _write_out(made)
  made.replace(library)
  _write_out(library.parent)
  return library


def _write_out(path: pathlib.Path) -> None:
  """Waits until a file, or a folder's list of files, is on the disk."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def digest(contents: bytes) -> str:
  """Returns a short name of these contents."""
  return hashlib.sha256(contents).hexdigest()[:16]


def write_whole(path: pathlib.Path, text: str) -> None:
  """Writes a file of the cache, whole or not at all."""
  path.parent.mkdir(parents=True, exist_ok=True)
  partial = path.with_suffix(f".{os.getpid()}.tmp")
  partial.write_text(text)
  partial.replace(path)


def run(*command: str) -> bytes:
  """Runs a command and returns its output."""
  return subprocess.run(command, check=True, capture_output=True).stdout


def _first_lines(error: Exception) -> str:
  output = getattr(error, "stderr", None) or b""
  return " ".join([str(error), *output.decode(errors="replace").splitlines()[:3]])
