"""Checks that JAX has the platform that JAX_PLATFORMS names."""

import jax
from jax.extend.backend import clear_backends


def check_platform() -> None:
  """Raises a ValueError if JAX can't use any requested platform.

  JAX raises errors of several types, and one error has no text.
  """
  requested = jax.config.jax_platforms
  # Without a request JAX takes a platform that is present. The CPU is always present.
  if not requested or requested == "cpu":
    return
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    jax.config.update("jax_platforms", None)
    try:
      present = jax.default_backend()  # The platform that JAX takes by default.
    finally:
      jax.config.update("jax_platforms", requested)
      clear_backends()
    reason = f" ({error})" if str(error) else ""
    # `from None` drops JAX's traceback, which is long and shows internals.
    raise ValueError(
      f"JAX finds no platform {requested!r}, the value of JAX_PLATFORMS, but finds "
      f"{present!r}{reason}. Set JAX_PLATFORMS={present}, or install JAX for "
      f"{requested!r}."
    ) from None
