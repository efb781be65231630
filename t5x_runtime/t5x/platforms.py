"""Checks that JAX has the platform in JAX_PLATFORMS."""

import jax
from jax.extend.backend import clear_backends


def check_platform() -> None:
  """Raises a ValueError if JAX can't use any platform in JAX_PLATFORMS.

  JAX itself raises errors of several types, including an error without a text.
  """
  asked = jax.config.jax_platforms
  # Without JAX_PLATFORMS, JAX uses an available platform, and the CPU is always
  # available.
  if not asked or asked == "cpu":
    return
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    present = _present(asked)
    reason = f" ({error})" if str(error) else ""
    # `from None` hides JAX's own trace, which is long and about internals.
    raise ValueError(
      f"JAX finds no platform {asked!r}, the value of JAX_PLATFORMS, but finds "
      f"{present!r}{reason}. Set JAX_PLATFORMS={present}, or install JAX for {asked!r}."
    ) from None


def _present(asked: str) -> str:
  """Returns JAX's default platform, and restores the setting of platforms."""
  jax.config.update("jax_platforms", None)
  try:
    return jax.default_backend()
  finally:
    jax.config.update("jax_platforms", asked)
    clear_backends()
