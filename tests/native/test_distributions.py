"""Native distributions equal float64 row by row, and builds give equal products."""

import ctypes
import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.native import library
from specdec_t5x.native.distributions import adjusted_probs
from tests.exactness.distributions import adjusted
from tests.kernels import KINDS, needs_kernels, normal, screened
from tests.network.test_rounded import matrices, ours

pytestmark = [pytest.mark.slow, needs_kernels]
SAMPLINGS = (
  Sampling(),
  Sampling(0.3),
  Sampling(top_k=40),
  Sampling(1.7, top_k=300),
  Sampling(top_p=0.9),
)


def distributions(logits, sampling):
  return np.asarray(jax.jit(adjusted_probs, static_argnums=1)(logits, sampling))


def exactly(row, sampling):
  """Returns the float64 distribution of logits divided by T in float32."""
  row = row / np.float32(sampling.temperature)
  return adjusted(row, dataclasses.replace(sampling, temperature=1.0))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("size", [1, 16, 257, 32_128])
def test_distributions_equal_float64(size, sampling):
  logits = 4 * normal(0, 3, size)
  exact = [exactly(row, sampling) for row in logits]
  distances = np.abs(distributions(logits, sampling) - exact).sum(axis=1) / 2
  np.testing.assert_array_less(distances, 1e-6)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_row_does_not_depend_on_other_rows(sampling):
  logits = 4 * normal(0, 19, 3_000)
  together = distributions(logits, sampling)
  np.testing.assert_array_equal(
    distributions(logits[::-1].copy(), sampling)[::-1], together
  )
  np.testing.assert_array_equal(
    distributions(logits.reshape(19, 1, -1), sampling)[:, 0], together
  )
  for row, distribution in zip(logits, together, strict=True):
    np.testing.assert_array_equal(distributions(row, sampling), distribution)


def test_logits_far_below_the_maximum_have_zero_probability():
  distribution = distributions(np.array([0, -86, -88, -1e30], np.float32), Sampling())
  assert distribution[1] > 0
  np.testing.assert_array_equal(distribution[2:], 0)


def test_vmap_maps_over_rows():
  logits = 4 * normal(0, 5, 2, 300)
  run = jax.vmap(lambda x: adjusted_probs(x, Sampling(top_k=9)), in_axes=1, out_axes=1)
  np.testing.assert_array_equal(
    jax.jit(run)(logits), distributions(logits, Sampling(top_k=9))
  )


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_gradient_equals_xla(sampling, monkeypatch):
  logits = jnp.asarray(4 * normal(0, 2, 300))

  def found():
    return jax.grad(lambda x: (adjusted_probs(x, sampling) ** 2).sum())(logits)

  ours = found()
  monkeypatch.setattr(library, "problem", lambda: "not wanted")
  np.testing.assert_allclose(ours, found(), atol=1e-6)
  assert np.abs(ours).max() > 1e-3


# ---- Products of few bits do not depend on the processor's instructions. ----

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
