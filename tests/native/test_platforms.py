"""Choices that depend on the platform are made when a program is compiled."""

import functools

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.core.distributions import Sampling, argmax
from specdec_t5x.native.distributions import adjusted_probs
from specdec_t5x.network import products
from specdec_t5x.network.net import block_widths
from tests.kernels import needs_kernels


def lowered(function, *args):
  traced = jax.jit(function).trace(*args)
  return {
    platform: traced.lower(lowering_platforms=(platform,)).as_text()
    for platform in ("cpu", "tpu", "cuda", "rocm")
  }


def test_argmax_uses_lanes_on_cpu_only():
  # A CPU program reduces lanes of 128, other platforms the whole vocabulary.
  found = lowered(argmax, jnp.zeros((2, 32_128)))
  assert [name for name, text in found.items() if "2x251x128" in text] == ["cpu"]


@needs_kernels
def test_native_kernels_are_called_on_cpu_only():
  row, cache, bias = map(jnp.zeros, ((2, 1, 3, 8), (2, 3, 5, 8), (1, 1, 1, 5)))
  multiply, attend = (
    functools.partial(f, "auto") for f in (products.multiply, products.attend)
  )
  calls = {
    "specdec_multiply": lowered(multiply, row, row[0, 0].T),
    "specdec_attention": lowered(attend, row, cache, cache, bias),
    "specdec_adjust": lowered(lambda x: adjusted_probs(x, Sampling()), row),
  }
  for name, found in calls.items():
    assert [platform for platform, text in found.items() if name in text] == ["cpu"]


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_blocks_have_many_widths_on_cpu_only(monkeypatch, platform):
  assert block_widths(6) == (1, 2, 4, 7)
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  assert block_widths(6) == (1, 7)
  assert block_widths(6, least=2) == (7,)
