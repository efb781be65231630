"""JAX's usual promotion of ranks and dtypes, whatever the user set for other code."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def usual_promotion() -> Iterator[None]:
  """Lets JAX promote ranks and dtypes, on which our programs rely.

  JAX_NUMPY_RANK_PROMOTION='raise' and JAX_NUMPY_DTYPE_PROMOTION='strict' are for the
  user's own code.
  """
  with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
    yield
