"""Whether JAX has the platform that JAX_PLATFORMS names."""

import jax
from jax.extend.backend import clear_backends


def check_platform() -> None:
  """Raises a ValueError where JAX can't use any platform that was asked for.

  JAX itself raises errors of several types, one of them without a text.
  """
  asked = jax.config.jax_platforms
  # Without a choice JAX takes what is there, and the CPU is always there.
  if not asked or asked == "cpu":
    return
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:
    present, reason = _present(asked), f" ({error})" if str(error) else ""
    # Without JAX's own trace, which is long and of internals.
    raise ValueError(
      f"JAX finds no platform {asked!r}, which JAX_PLATFORMS names, but "
      f"{present!r}{reason}. Set JAX_PLATFORMS={present}, or install what JAX needs "
      "for the other."
    ) from None


def _present(asked: str) -> str:
  """Returns the platform that JAX takes by itself, and leaves JAX as it was."""
  jax.config.update("jax_platforms", None)
  try:
    return jax.default_backend()
  finally:
    jax.config.update("jax_platforms", asked)
    clear_backends()
