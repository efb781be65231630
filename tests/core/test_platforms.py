"""What depends on the device: chosen when a program is compiled, and its precision."""

from types import SimpleNamespace as Of

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.core import platforms
from specdec_t5x.core.distributions import argmax
from specdec_t5x.decoding.widths import block_widths

CPU, TPU = ("cpu", None), ("tpu", None)
A100, V100, AMD = (("gpu", capability) for capability in ("8.0", "7.0", "gfx942"))


@pytest.mark.parametrize(
  ("setting", "device", "kept"),
  [
    (None, CPU, "float32"),
    ("bfloat16", CPU, "float32"),
    (None, TPU, "bfloat16"),
    ("default", TPU, "bfloat16"),
    ("high", TPU, "bfloat16_3x"),
    ("BF16_BF16_F32_X3", TPU, "bfloat16_3x"),
    ("highest", TPU, "float32"),
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


def test_a_product_s_epsilon_is_the_coarser_of_numbers_and_device(monkeypatch):
  assert platforms.product_epsilon("float32") == jnp.finfo("float32").eps
  assert platforms.product_epsilon("bfloat16") == 2.0**-7
  gpu = Of(platform="gpu", compute_capability="8.0")
  monkeypatch.setattr(jax, "devices", lambda: [gpu])
  with jax.default_matmul_precision(None):
    assert platforms.product_epsilon("float32") == 2.0**-10
    with platforms.full_precision("float32"):
      assert platforms.product_epsilon("float32") == 2.0**-23


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


def test_argmax_is_the_platform_s_where_it_is_compiled():
  lower = lambda platform: (
    jax.jit(argmax)
    .trace(jnp.zeros((2, 32_128)))
    .lower(lowering_platforms=(platform,))
    .as_text()
  )
  # Lanes of 128 on a CPU; one reduction over the vocabulary elsewhere.
  assert "2x251x128" in lower("cpu")
  for platform in ("tpu", "cuda"):
    assert "2x251x128" not in lower(platform)


def test_blocks_have_many_widths_on_a_cpu_alone(monkeypatch):
  assert block_widths(6) == (1, 2, 4, 7)
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  assert block_widths(6) == (1, 7)
  assert block_widths(6, least=2) == (7,)
