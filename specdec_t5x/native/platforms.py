"""All choices that depend on the kind of device.

On CPU, our kernels compute products of few rows and attention (`network.products`), and
distributions (`native.distributions`). Blocks have several widths (`decoding.decoder`),
because wider blocks cost more. A loop over drafted tokens ends when all rows have
stopped.

On GPU and TPU, XLA computes everything. Blocks have the full width, because a wide
block costs about as much as one token. A loop over drafted tokens has a known number of
turns, because the host waits for the device at every condition of another loop.

On one NVIDIA GPU, our kernels compute a draft's step (`native.cuda.step`) and
products of few rounded rows (`network.rounded`), if the kernels agree with XLA and are
faster (`native.cuda.choice`).
"""

from collections.abc import Callable

import jax


def choose_kernel_on_cpu(kernel: Callable, otherwise: Callable) -> Callable:
  """Returns a function that runs `kernel` on CPUs and `otherwise` on other devices.

  The derivatives are those of `otherwise`, because the kernel has no derivatives.
  """

  @jax.custom_jvp
  def run(*args):
    return jax.lax.platform_dependent(*args, cpu=kernel, default=otherwise)

  @run.defjvp
  def derivative(args, tangents):
    return jax.jvp(otherwise, args, tangents)

  return run


def wide_blocks_cost_more() -> bool:
  """Returns whether the target's time grows with the number of scored tokens here."""
  return jax.default_backend() == "cpu"


def conditions_are_free() -> bool:
  """Returns whether a loop's condition costs no wait of the host for the device."""
  return jax.default_backend() == "cpu"
