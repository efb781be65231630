"""What is chosen by the kind of device: the one place that knows.

CPU: products of few rows and attention (`network.products`) and distributions
(`native.distributions`) by our own kernels, and blocks of several widths
(`decoding.widths`), since a wider one costs more. GPU and TPU: XLA's, and blocks as
wide as they can be, which cost about what one token costs. One NVIDIA GPU: a draft's
step (`network.draft_step`) and products of few rounded rows (`network.rounded`) by our
own kernels, where these agreed with XLA's and were faster (`native.cuda.choice`).
"""

from collections.abc import Callable

import jax


def choose_kernel_on_cpu(kernel: Callable, otherwise: Callable) -> Callable:
  """Returns `kernel` where a program for CPUs is compiled, `otherwise` for others.

  The kernel has no derivatives: they are of `otherwise`.
  """

  @jax.custom_jvp
  def run(*args):
    return jax.lax.platform_dependent(*args, cpu=kernel, default=otherwise)

  @run.defjvp
  def derivative(args, tangents):
    return jax.jvp(otherwise, args, tangents)

  return run


def wide_blocks_cost_more() -> bool:
  """Returns whether scoring more tokens takes the target longer here."""
  return jax.default_backend() == "cpu"
