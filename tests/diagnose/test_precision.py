"""The precision of products, which depends on the setting and the device."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from specdec_t5x.diagnose import precision

CPU, TPU = ("cpu", None), ("tpu", None)
A100, V100, AMD = (("gpu", capability) for capability in ("8.0", "7.0", "gfx942"))


@pytest.mark.parametrize(
  ("setting", "device", "expected"),
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
def test_product_precision_depends_on_setting_and_device(setting, device, expected):
  assert precision.product_precision(setting, *device) == expected


@pytest.mark.parametrize(
  ("setting", "device", "bits"),
  [
    (None, TPU, 7),
    ("high", TPU, 15),
    (None, A100, 10),
    ("float32", A100, 23),
    (None, CPU, 23),
  ],
)
def test_product_epsilon_is_the_coarser_epsilon(monkeypatch, setting, device, bits):
  fake_device = SimpleNamespace(platform=device[0], compute_capability=device[1])
  monkeypatch.setattr(jax, "devices", lambda: [fake_device])
  with jax.default_matmul_precision(setting):
    assert precision.product_epsilon("float32") == 2.0**-bits
    assert precision.product_epsilon("bfloat16") == 2.0**-7


def test_float32_comparisons_use_full_precision_unless_configured():
  def lowered():
    return str(jax.jit(jnp.dot).lower(jnp.ones((2, 2)), jnp.ones((2, 2))).as_text())

  with jax.default_matmul_precision(None):
    assert "HIGHEST" not in lowered()
    with precision.full_precision("float32"):
      assert "HIGHEST" in lowered()
    with precision.full_precision("bfloat16"):
      assert "HIGHEST" not in lowered()
  with jax.default_matmul_precision("default"), precision.full_precision("float32"):
    assert "HIGHEST" not in lowered()
