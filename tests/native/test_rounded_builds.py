"""Products of few bits are the same however the processor multiplies bytes."""

import ctypes
import pathlib

import jax
import numpy as np
import pytest

from specdec_t5x.native import library
from tests.network.test_products import normal
from tests.network.test_rounded_products import KINDS, matrices, ours

pytestmark = pytest.mark.skipif(
  library.problem() is not None, reason=f"no kernels: {library.problem()}"
)
# By what processors have: nothing but SSE, AVX2, AVX2 with VNNI, AVX-512 without.
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
def test_a_build_for_less_gives_the_same(name, tmp_path):
  flags, needed = BUILDS[name]
  if not set(needed) <= set(processor()):
    pytest.skip(f"this processor lacks one of {needed}")
  (source,) = (path for path in library.SOURCES if path.name == "rounded.cc")
  made, include = tmp_path / "rounded.so", f"-I{jax.ffi.include_dir()}"
  common = "-std=c++17", "-O2", "-ffp-contract=fast", "-fPIC", "-w", "-shared"
  compiler = library._compiler()
  library._run(*compiler, *common, *flags, include, str(source), "-o", str(made))
  handler = jax.ffi.pycapsule(ctypes.CDLL(str(made)).specdec_rounded)
  target = f"rounded_{name.replace(' ', '_')}"
  jax.ffi.register_ffi_target(target, handler, platform="cpu")
  for bits, group in KINDS:
    x, kernels = normal(3, 9, 330), matrices(330, bits, group, packed=True)
    arrays = [each[part] for each in kernels for part in ("codes", "scales")]
    shapes = [
      jax.ShapeDtypeStruct((9, each["scales"].shape[1]), x.dtype) for each in kernels
    ]
    found = jax.jit(jax.ffi.ffi_call(target, shapes))(x, *arrays)
    for one, other in zip(found, ours(x, *kernels), strict=True):
      scale = max(np.abs(other).max(), 1)
      # Sums of whole numbers are exact; their scales are added fused, or not.
      np.testing.assert_allclose(one, other, atol=1e-5 * scale)
