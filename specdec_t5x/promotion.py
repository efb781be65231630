"""JAX's default promotion of ranks and dtypes, independent of the user's settings."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
  """Enables JAX's default promotion of ranks and dtypes, on which our programs rely.

  JAX_NUMPY_RANK_PROMOTION='raise' and JAX_NUMPY_DTYPE_PROMOTION='strict' apply to the
  user's code only.
  """
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    yield
