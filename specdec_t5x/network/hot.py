"""Drafts over a task's frequent tokens, the hot tokens: a projection of fewer columns.

With a large vocabulary, the projection takes most of a small draft's step, and a task
uses few tokens of the vocabulary. A trimmed draft's q is exactly 0 on all other tokens.
The target's distribution does not change, so every rule keeps the rule's guarantee.

Source: FR-Spec, arXiv 2502.14856.

Shapes: D width, V vocabulary, K hot tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax.linen.partitioning import param_with_axes
from jaxtyping import Array, Float, Int

PLACES = "hot_places"
KERNEL = "hot_logits"


def places(module: nn.Module, size: int) -> Int[Array, "V"]:
  """Declares the index of each token among the hot tokens, K for other tokens."""
  # T5X's rules do not divide the axis "length".
  zeros = nn.initializers.zeros
  return param_with_axes(
    PLACES, zeros, (size,), jnp.int32, axes=("length",), module=module
  )


def spread(
  logits: Float[Array, "*B K"], places: Int[Array, "V"]
) -> Float[Array, "*B V"]:
  """Returns logits of all tokens from the hot tokens' logits; -inf for other tokens."""
  padding = [(0, 0)] * (logits.ndim - 1) + [(0, 1)]
  padded = jnp.pad(logits, padding, constant_values=-jnp.inf)
  return jnp.take(padded, places, axis=-1, mode="clip")


def size(shapes: Mapping[str, tuple[int, ...]], prefix: str = "") -> int:
  """Returns K of parameters of these shapes, by path; 0 without trimming."""
  if prefix + PLACES not in shapes:
    return 0
  kernel = "logits_dense" if prefix else KERNEL
  return shapes[f"{prefix}{kernel}/kernel"][1]


def projection(params: Mapping[str, Any]) -> Float[np.ndarray, "D V"]:
  """Returns the matrix that projects a network's features to logits."""
  decoder = params["decoder"]
  if "logits_dense" in decoder:
    return np.asarray(decoder["logits_dense"]["kernel"])
  table = np.asarray({**decoder, **params}["token_embedder"]["embedding"])
  return table.T / np.sqrt(table.shape[1], dtype=table.dtype)


def trimmed(
  config: Any, params: Mapping[str, Any], tokens: Sequence[int], head: Any
) -> tuple[Any, dict[str, Any]]:
  """Returns the configuration and the parameters of a draft trimmed to some tokens.

  Args:
    config: configuration of the draft: a network with a projection, or heads.
    params: parameters of the draft.
    tokens: hot tokens, ascending.
    head: projection [D, V] of the draft before trimming.
  """
  ids = np.asarray(tokens)
  params = dict(params)
  columns = head[:, ids]
  # The index of each token among the hot tokens, K for other tokens.
  indices = np.full(head.shape[1], len(ids), np.int32)
  indices[ids] = np.arange(len(ids))
  if "decoder" in params:
    trimmed_head = {PLACES: indices, "logits_dense": {"kernel": columns}}
    params["decoder"] = {**params["decoder"], **trimmed_head}
    settings = {"logits_via_embedding": False}
  else:
    params |= {PLACES: indices, KERNEL: {"kernel": columns}}
    settings = {"vocab_size": len(indices)}
  return dataclasses.replace(config, hot=len(ids), **settings), params
