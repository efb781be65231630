"""What depends on the device: chosen when a program is compiled, and its precision."""

import functools
from types import SimpleNamespace as Of

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.core import platforms
from specdec_t5x.core.distributions import Sampling, adjusted_probs, argmax
from specdec_t5x.decoding.widths import block_widths
from specdec_t5x.native import library
from specdec_t5x.network import products

CPU, TPU = ("cpu", None), ("tpu", None)
A100, V100, AMD = (("gpu", capability) for capability in ("8.0", "7.0", "gfx942"))


@pytest.mark.parametrize(
  ("setting", "device", "kept"),
  [
    (None, CPU, "float32"),
    ("bfloat16", CPU, "float32"),
    ("BF16_BF16_F32", CPU, "float32"),
    (None, TPU, "bfloat16"),
    ("default", TPU, "bfloat16"),
    ("high", TPU, "bfloat16_3x"),
    ("tensorfloat32", TPU, "bfloat16_3x"),
    ("BF16_BF16_F32_X3", TPU, "bfloat16_3x"),
    ("BF16_BF16_F32_X9", TPU, "bfloat16_3x"),
    ("highest", TPU, "float32"),
    ("F32_F32_F32", TPU, "float32"),
    (None, A100, "tensorfloat32"),
    ("tensorfloat32", A100, "tensorfloat32"),
    ("BF16_BF16_F32", A100, "bfloat16"),
    ("float32", A100, "float32"),
    (None, V100, "float32"),
    (None, AMD, "float32"),
  ],
)
def test_products_keep_what_the_device_makes_of_the_setting(setting, device, kept):
  assert platforms.product_precision(setting, *device) == kept


def test_a_product_s_epsilon_is_the_coarser_of_numbers_and_device():
  assert platforms.product_epsilon("float32") == jnp.finfo("float32").eps
  assert platforms.product_epsilon("bfloat16") == 2.0**-7


@pytest.mark.parametrize(
  ("setting", "device", "bits"),
  [(None, TPU, 7), ("high", TPU, 15), (None, A100, 10), ("float32", A100, 23)],
)
def test_a_product_s_epsilon_is_that_of_the_bits_kept(
  monkeypatch, setting, device, bits
):
  found = Of(platform=device[0], compute_capability=device[1])
  monkeypatch.setattr(jax, "devices", lambda: [found])
  with jax.default_matmul_precision(setting):
    assert platforms.product_epsilon("float32") == 2.0**-bits
    assert platforms.product_epsilon("bfloat16") == 2.0**-7


def test_float32_comparisons_ask_for_all_digits_unless_told_otherwise():
  def precision():
    return str(jax.jit(jnp.dot).lower(jnp.ones((2, 2)), jnp.ones((2, 2))).as_text())

  with jax.default_matmul_precision(None):
    assert "HIGHEST" not in precision()
    with platforms.full_precision("float32"):
      assert "HIGHEST" in precision()
    with platforms.full_precision("bfloat16"):
      assert "HIGHEST" not in precision()
  with jax.default_matmul_precision("default"), platforms.full_precision("float32"):
    assert "HIGHEST" not in precision()


def lowered(function, *args):
  traced = jax.jit(function).trace(*args)
  return {
    platform: traced.lower(lowering_platforms=(platform,)).as_text()
    for platform in ("cpu", "tpu", "cuda", "rocm")
  }


def test_argmax_is_the_platform_s_where_it_is_compiled():
  # Lanes of 128 on a CPU; one reduction over the vocabulary elsewhere.
  found = lowered(argmax, jnp.zeros((2, 32_128)))
  assert [name for name, text in found.items() if "2x251x128" in text] == ["cpu"]


@pytest.mark.skipif(library.problem() is not None, reason="no kernels")
def test_our_kernels_are_called_on_a_cpu_alone():
  row, cache, bias = map(jnp.zeros, ((2, 1, 3, 8), (2, 3, 5, 8), (1, 1, 1, 5)))
  multiply, attend = (
    functools.partial(f, "auto") for f in (products.multiply, products.attend)
  )
  calls = {
    "specdec_multiply": lowered(multiply, row, row[0, 0].T),
    "specdec_attention": lowered(attend, row, cache, cache, bias),
    "specdec_laws": lowered(lambda x: adjusted_probs(x, Sampling()), row),
  }
  for name, found in calls.items():
    assert [platform for platform, text in found.items() if name in text] == ["cpu"]


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_blocks_have_many_widths_on_a_cpu_alone(monkeypatch, platform):
  assert block_widths(6) == (1, 2, 4, 7)
  monkeypatch.setattr(jax, "default_backend", lambda: platform)
  assert block_widths(6) == (1, 7)
  assert block_widths(6, least=2) == (7,)
