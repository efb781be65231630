"""Which places of a batch's rows hold input, and which are padding.

A caller that knows the lengths of its inputs pads them with -1. Id 0 is then a token
like any other, as MADLAD-400's unknown piece is. T5X pads with 0, so in T5X's batches
an input ends with the row's last id that is not 0.

Shapes: B rows, E input length.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

PADDING = -1


def input_mask(tokens: Int[Array, "*B E"]) -> Bool[Array, "*B E"]:
  """Returns which places hold input, in rows padded with -1 or with 0."""
  places = jnp.arange(tokens.shape[-1])
  ends = jnp.where(tokens != 0, places + 1, 0)
  ends = ends.max(axis=-1, keepdims=True, initial=0)
  return (places < ends) & (tokens >= 0)


def input_lengths(tokens: Int[Array, "*B E"]) -> Int[Array, "*B"]:
  """Returns the length of each row's input."""
  return input_mask(tokens).sum(axis=-1)


def without_padding(tokens: Int[Array, "*B E"]) -> Int[Array, "*B E"]:
  """Returns the rows with 0 in place of -1, which no embedding has a row for."""
  return jnp.maximum(tokens, 0)
