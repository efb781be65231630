"""The handlers of step.cu and few.cu on XLA's CPU platform (cuda_runtime.h).

A program compiled for a CPU calls the Python code, handlers and kernels of a GPU.
"""

import ctypes
import functools
import pathlib

import jax

from specdec_t5x import console
from specdec_t5x.native import library
from specdec_t5x.native.cuda import choice, layout
from specdec_t5x.native.cuda import library as of_gpu

CALLS = 2
HERE = pathlib.Path(__file__).parent
_FLAGS = ("-shared", "-fPIC", "-O1", "-std=c++20", "-pthread", "-fno-strict-aliasing")
# Few threads per block; no symbols shared with another library of the kernels.
_SIZES = ("-DSPECDEC_STEP_THREADS=128", "-DSPECDEC_FEW_WARPS=4", "-fno-gnu-unique")


@functools.cache
def loaded() -> ctypes.CDLL:
  """Compiles the library once, registers the handlers for CPUs, returns the library."""
  folder = pathlib.Path(of_gpu.__file__).parent
  includes = [f"-I{path}" for path in (HERE, folder, jax.ffi.include_dir())]
  parts = [*folder.glob("*.cu*"), *HERE.glob("*.h")]
  text = b"".join(path.read_bytes() for path in sorted(parts))
  name = f"cuda-on-cpu-{library.digest(text + repr((_FLAGS, _SIZES)).encode())}"

  def make(path):
    # Compiled as one source, because XLA's headers take most of the time.
    first, last = map(str, of_gpu.SOURCES)
    sources = ["-x", "c++", "-include", first, last]
    library.run("g++", *_FLAGS, "-w", *_SIZES, *includes, *sources, "-o", str(path))

  kernels = ctypes.CDLL(str(library.kept_or_made(name, make)))
  for target in of_gpu.TARGETS:
    handler = jax.ffi.pycapsule(getattr(kernels, target))
    jax.ffi.register_ffi_target(target, handler, platform="cpu")
  return kernels


def install(monkeypatch, folder: pathlib.Path, clock=None) -> choice.Choices:
  """Lets the package use the kernels like a GPU's, and returns the choices: none yet.

  Args:
    monkeypatch: pytest's fixture.
    folder: folder of the choices.
    clock: times our kernel and XLA; our kernel is faster by default.
  """
  loaded()
  library.problem()  # Loads the CPU's kernels before the cache folder changes.
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(folder))
  monkeypatch.setattr(of_gpu, "loaded", loaded)
  monkeypatch.setattr(of_gpu, "problem", lambda: None)
  # Few blocks and few calls, because the threads of a GPU are emulated.
  monkeypatch.setattr(layout, "cluster_of", lambda heads: 4)
  console.say_once.cache_clear()
  return choose_by(monkeypatch, clock or clock_of(1.6e-4, 4.2e-4))


def choose_by(monkeypatch, clock) -> choice.Choices:
  """Lets the process choose anew by a clock, and returns the choices."""
  choices = choice.Choices(CALLS, clock)
  monkeypatch.setattr(choice, "CHOICES", choices)
  return choices


def clock_of(*seconds: float):
  """Returns a clock that shows the given seconds of each result."""
  return lambda *runs: tuple(CALLS * x for x in seconds)
