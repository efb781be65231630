"""How many digits products of float32 numbers keep on a device."""

import jax
import jax.numpy as jnp

# Relative distance to the next number, of what products keep of their inputs. Two terms
# of bfloat16, as three passes have, hold 16 bits.
_EPSILONS = {
  "float32": 2.0**-23,
  "bfloat16_3x": 2.0**-15,
  "tensorfloat32": 2.0**-10,
  "bfloat16": 2.0**-7,
}
# JAX's names for how float32 is multiplied, and what a TPU and a GPU make of them.
_HIGHEST = ("highest", "float32", "F32_F32_F32")
_HIGH = ("high", "tensorfloat32")
_LEAST_TF32 = 8  # The first of NVIDIA's compute capabilities that has TF32.


def product_epsilon(dtype: str) -> float:
  """Returns the precision of products of such numbers on this device.

  By JAX's setting (jax_default_matmul_precision) and what the device makes of it.

  Args:
    dtype: of the numbers, 'float32' or 'bfloat16'.

  Returns:
    The distance from 1 to the next number that products tell from it.
  """
  epsilon = float(jnp.finfo(dtype).eps)
  device = jax.devices()[0]
  capability = getattr(device, "compute_capability", None)
  setting = jax.config.jax_default_matmul_precision
  kept = product_precision(setting, device.platform, capability)
  return max(epsilon, _EPSILONS[kept])


def product_precision(
  setting: str | None, platform: str, capability: str | None = None
) -> str:
  """Returns what products of float32 numbers keep of them.

  Args:
    setting: jax_default_matmul_precision.
    platform: 'cpu', 'gpu' or 'tpu'.
    capability: an NVIDIA GPU's compute capability, as '8.0'; AMD's are names.

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
  """Returns a context in which float32 products keep all digits, as comparisons need.

  Where jax_default_matmul_precision is set, it stays as it is: then it is what is to be
  looked at.

  Args:
    dtype: of the numbers; products of others stay as they are.
  """
  setting = jax.config.jax_default_matmul_precision
  wanted = "float32" if dtype == "float32" and setting is None else setting
  return jax.default_matmul_precision(wanted)
