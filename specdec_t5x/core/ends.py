"""EOS tokens: one token id, or several."""

import functools

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

EndTokens = int | tuple[int, ...]


def as_tuple(eos_id: EndTokens) -> tuple[int, ...]:
  """Returns the EOS tokens as a tuple.

  >>> as_tuple(1), as_tuple((1, 107))
  ((1,), (1, 107))
  """
  return eos_id if isinstance(eos_id, tuple) else (eos_id,)


def is_end(tokens: Int[Array, "*B"], eos_id: EndTokens) -> Bool[Array, "*B"]:
  """Returns whether each token is an EOS token.

  Args:
    tokens: token ids.
    eos_id: the EOS token, or a tuple of all EOS tokens.
  """
  ids = as_tuple(eos_id)
  return functools.reduce(jnp.logical_or, [tokens == token for token in ids])
