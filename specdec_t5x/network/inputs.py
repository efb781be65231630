"""Masks that separate input from padding in a batch's rows.

A caller that knows the lengths of inputs pads with -1. Id 0 is then an ordinary token,
as the unknown piece of MADLAD-400. T5X pads with 0, so in T5X's batches an input ends
with the last nonzero id of the row.

Shapes: B rows, E input length.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

PADDING = -1


def input_mask(tokens: Int[Array, "*B E"]) -> Bool[Array, "*B E"]:
  """Returns which positions hold input, in rows padded with -1 or with 0."""
  places = jnp.arange(tokens.shape[-1])
  ends = jnp.where(tokens != 0, places + 1, 0)
  ends = ends.max(axis=-1, keepdims=True, initial=0)
  return (places < ends) & (tokens >= 0)


def input_lengths(tokens: Int[Array, "*B E"]) -> Int[Array, "*B"]:
  """Returns the length of each row's input."""
  return input_mask(tokens).sum(axis=-1)


def without_padding(tokens: Int[Array, "*B E"]) -> Int[Array, "*B E"]:
  """Returns the rows with 0 in place of -1, because embeddings have no row for -1."""
  return jnp.maximum(tokens, 0)
