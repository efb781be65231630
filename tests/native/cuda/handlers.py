"""The handlers of step.cu and few.cu on XLA's CPU platform (cuda_runtime.h).

A program that JAX compiles for a CPU calls the same handlers, Python and kernels as on
a GPU.
"""

import ctypes
import functools
import pathlib

import jax

from specdec_t5x import tuning
from specdec_t5x.native import library
from specdec_t5x.native.cuda import choice, layout
from specdec_t5x.native.cuda import library as of_gpu

HERE = pathlib.Path(__file__).parent
_FLAGS = ("-shared", "-fPIC", "-O2", "-std=c++20", "-pthread", "-fno-strict-aliasing")
# Few threads a block, and nothing in common with another library of the same kernels.
_SIZES = ("-DSPECDEC_STEP_THREADS=64", "-DSPECDEC_FEW_WARPS=4", "-fno-gnu-unique")


@functools.cache
def loaded() -> ctypes.CDLL:
  """Returns the library, its handlers registered for CPUs; it is compiled once."""
  folder = pathlib.Path(of_gpu.__file__).parent
  includes = [f"-I{path}" for path in (HERE, folder, jax.ffi.include_dir())]
  parts = [*folder.glob("*.cu*"), *HERE.glob("*.h")]
  text = b"".join(path.read_bytes() for path in sorted(parts))
  name = f"cuda-on-cpu-{library.digest(text + repr((_FLAGS, _SIZES)).encode())}"

  def make(path):
    sources = ["-x", "c++", *map(str, of_gpu.SOURCES)]
    library.run("g++", *_FLAGS, "-w", *_SIZES, *includes, *sources, "-o", str(path))

  kernels = ctypes.CDLL(str(library.kept_or_made(name, make)))
  for target in of_gpu.TARGETS:
    handler = jax.ffi.pycapsule(getattr(kernels, target))
    jax.ffi.register_ffi_target(target, handler, platform="cpu")
  return kernels


def install(monkeypatch, folder: pathlib.Path, seconds=(1.6e-4, 4.2e-4)) -> None:
  """Lets the package find these kernels as a GPU's, with no choice made yet.

  Args:
    monkeypatch: pytest's.
    folder: where choices are kept.
    seconds: of our kernel and of XLA's part; None measures them.
  """
  loaded()
  library.problem()  # The CPU's own kernels, before their folder is another one.
  monkeypatch.setenv("SPECDEC_T5X_CACHE", str(folder))
  monkeypatch.setattr(of_gpu, "loaded", loaded)
  monkeypatch.setattr(of_gpu, "problem", lambda: None)
  # Few blocks and few calls: each thread of a GPU is emulated.
  monkeypatch.setattr(layout, "cluster_of", lambda heads: 4)
  monkeypatch.setattr(choice, "CALLS", 2)
  monkeypatch.setattr(choice, "ROUNDS", 1)
  monkeypatch.setattr(choice, "_decided", {})
  monkeypatch.setattr(tuning, "_chosen", set())
  if seconds is not None:
    monkeypatch.setattr(choice, "_seconds", lambda *runs: seconds)
