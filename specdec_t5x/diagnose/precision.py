"""The precision of float32 products on a device."""

import jax
import jax.numpy as jnp

# The relative distance to the next number, at the precision that products keep of the
# inputs. Three passes use two terms of bfloat16, which hold 16 bits.
_EPSILONS = {
  "float32": 2.0**-23,
  "bfloat16_3x": 2.0**-15,
  "tensorfloat32": 2.0**-10,
  "bfloat16": 2.0**-7,
}
# JAX's names of the precisions of float32 products.
_HIGHEST = ("highest", "float32", "F32_F32_F32")
_HIGH = ("high", "tensorfloat32")
_LEAST_TF32 = 8  # NVIDIA's first major compute capability with TF32.


def product_epsilon(dtype: str) -> float:
  """Returns the precision of products on this device.

  The precision depends on JAX's setting (jax_default_matmul_precision), and on the
  device's interpretation of the setting.

  Args:
    dtype: the dtype of the factors, 'float32' or 'bfloat16'.

  Returns:
    The distance from 1 to the next number that products distinguish from 1.
  """
  epsilon = float(jnp.finfo(dtype).eps)
  device = jax.devices()[0]
  capability = getattr(device, "compute_capability", None)
  setting = jax.config.jax_default_matmul_precision
  name = product_precision(setting, device.platform, capability)
  return max(epsilon, _EPSILONS[name])


def product_precision(
  setting: str | None, platform: str, capability: str | None = None
) -> str:
  """Returns the precision that products keep of float32 factors.

  Args:
    setting: the value of jax_default_matmul_precision.
    platform: 'cpu', 'gpu' or 'tpu'.
    capability: an NVIDIA GPU's compute capability, as '8.0', or an AMD GPU's name.

  Returns:
    'float32', 'bfloat16_3x', 'tensorfloat32' or 'bfloat16'.
  """
  if setting in _HIGHEST or platform == "cpu":
    return "float32"
  if setting is not None and setting.startswith("BF16_"):
    return "bfloat16_3x" if setting.endswith(("_X3", "_X6", "_X9")) else "bfloat16"
  if platform == "tpu":
    return "bfloat16_3x" if setting in _HIGH else "bfloat16"
  major = (capability or "").partition(".")[0]
  has_tf32 = major.isdigit() and int(major) >= _LEAST_TF32
  return "tensorfloat32" if has_tf32 else "float32"


def full_precision(dtype: str):
  """Returns a context in which float32 products keep all digits, for comparisons.

  A user's setting of jax_default_matmul_precision stays in force, as the setting may be
  the subject of the comparison.

  Args:
    dtype: the dtype of the factors; a dtype other than 'float32' changes nothing.
  """
  setting = jax.config.jax_default_matmul_precision
  if dtype == "float32" and setting is None:
    setting = "float32"
  return jax.default_matmul_precision(setting)
