"""Products of few bits do not depend on the processor's instructions."""

import ctypes
import pathlib

import jax
import numpy as np
import pytest

from specdec_t5x.native import library
from tests.kernels import KINDS, needs_kernels, normal, screened
from tests.network.test_rounded import matrices, ours

pytestmark = [pytest.mark.slow, needs_kernels]
# Builds for SSE alone, AVX2, AVX2 with VNNI, and AVX-512 without VNNI.
BUILDS = {
  "portable": (("-march=x86-64-v2",), ("sse4_2",)),
  "avx2": (("-march=x86-64-v3",), ("avx2", "fma")),
  "avx vnni": (("-march=x86-64-v3", "-mavxvnni"), ("avx2", "fma", "avx_vnni")),
  "avx512": (("-march=x86-64-v4",), ("avx512bw", "avx512vl", "avx512dq")),
}
CPUINFO = pathlib.Path("/proc/cpuinfo")


def processor():
  lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
  return next((line.split() for line in lines if line.startswith("flags")), [])


@pytest.mark.parametrize("name", BUILDS)
def test_every_build_gives_the_same_products(name, tmp_path):
  flags, needed = BUILDS[name]
  if not set(needed) <= set(processor()):
    pytest.skip(f"this processor lacks one of {needed}")
  sources = [str(p) for p in library.SOURCES if p.stem in ("few_rows", "rounded")]
  output = tmp_path / "rounded.so"
  include = f"-I{jax.ffi.include_dir()}"
  common = ["-std=c++17", "-O0", "-ffp-contract=fast", "-fPIC", "-w", "-shared"]
  compiler = library._compiler()
  library.run(*compiler, *common, *flags, include, *sources, "-o", str(output))
  build = ctypes.CDLL(str(output))
  call = {}
  for kernel in ("multiply", "rounded", "certified"):
    call[kernel] = f"{kernel}_{name.replace(' ', '_')}"
    handler = jax.ffi.pycapsule(getattr(build, f"specdec_{kernel}"))
    jax.ffi.register_ffi_target(call[kernel], handler, platform="cpu")
  for bits, group in KINDS:
    x = normal(3, 9, 330)
    kernels = matrices(330, bits, group, layout="panels")
    arrays = [each[part] for each in kernels for part in ("codes", "scales")]
    shapes = [
      jax.ShapeDtypeStruct((9, each["scales"].shape[1]), x.dtype) for each in kernels
    ]
    found = jax.jit(jax.ffi.ffi_call(call["rounded"], shapes))(x, *arrays)
    for one, other in zip(found, ours(x, *kernels), strict=True):
      scale = max(np.abs(other).max(), 1)
      # Integer sums are exact; scales are applied with or without fused operations.
      np.testing.assert_allclose(one, other, atol=1e-5 * scale)
  x = normal(4, 5, 330)
  weights = normal(5, 330, 2000)
  parts = screened(weights)
  shape = jax.ShapeDtypeStruct((5, 2000), x.dtype)
  (full,) = jax.jit(jax.ffi.ffi_call(call["multiply"], [shape]))(x, weights)
  parts = [parts[part] for part in ("codes", "scales", "bounds")]
  certified = jax.ffi.ffi_call(call["certified"], shape)
  found = jax.jit(lambda *given: certified(*given, by_rows=False))(x, weights, *parts)
  np.testing.assert_array_equal(found.argmax(axis=1), full.argmax(axis=1))
  np.testing.assert_array_equal(found.max(axis=1), full.max(axis=1))
