"""Our kernels for NVIDIA GPUs: compiled by nvcc, which needs no GPU, and kept.

A machine without nvcc loads a library from SPECDEC_T5X_CACHE that another machine built
from the same sources, for the same architecture and with the same headers of XLA's FFI.
"""

import ctypes
import functools
import os
import pathlib
import shutil
import subprocess

import jax

from specdec_t5x.native import library

SOURCES = sorted(pathlib.Path(__file__).parent.glob("*.cu"))
_HEADERS = sorted(pathlib.Path(__file__).parent.glob("*.cuh"))
TARGETS = ("specdec_step", "specdec_few")
# Clusters of blocks need sm_90.
_ARCHITECTURE = "sm_90"
_FLAGS = (
  *("-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC,-w", "-w"),
  f"-arch={_ARCHITECTURE}",
)


@functools.cache
def problem() -> str | None:
  """Returns why there are no kernels for this GPU, or None."""
  if jax.default_backend() != "gpu":
    return f"the devices are {jax.default_backend()}s; native kernels are for GPUs"
  if jax.device_count() > 1:
    return f"there are {jax.device_count()} devices; XLA can't divide native kernels"
  if (capability := jax.devices()[0].compute_capability) != "9.0":
    return f"the GPU's compute capability is {capability}; native kernels are for 9.0"
  try:
    loaded()
  except (OSError, subprocess.SubprocessError) as error:
    return f"the build failed: {error}"
  return None


@library.computed_once
def loaded() -> ctypes.CDLL:
  """Returns the library, after registering the kernels in XLA."""
  kernels = ctypes.CDLL(str(built()))
  library.register(kernels, TARGETS, "CUDA")
  return kernels


def built() -> pathlib.Path:
  """Returns the library, and builds a missing library.

  Raises:
    OSError: if there is no nvcc, or nowhere to keep the library.
    subprocess.SubprocessError: if nvcc fails.
  """
  include = pathlib.Path(jax.ffi.include_dir())
  headers = b"".join(path.read_bytes() for path in sorted(include.rglob("*.h")))
  name = f"cuda-{_ARCHITECTURE}-{library.digest(code() + headers)}"

  def make(path):
    nvcc = os.environ.get("NVCC") or shutil.which("nvcc")
    if not nvcc:
      raise OSError(
        "there is no nvcc: install jax[cuda13], which includes nvcc, or set NVCC"
      )
    sources = map(str, SOURCES)
    library.run(nvcc, *_FLAGS, f"-I{include}", *sources, "-o", str(path))

  return library.kept_or_made(name, make)


def code() -> bytes:
  """Returns the compiled source code."""
  return b"".join(path.read_bytes() for path in (*SOURCES, *_HEADERS))
