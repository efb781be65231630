"""Drafts over a task's frequent tokens, the hot ones: a projection of fewer columns.

Where a vocabulary is large, most of a small draft's step is its projection to it, and a
task uses few of its tokens. A trimmed draft's q is 0 on all others, exactly; what the
target may say stays as it is, so every rule keeps its guarantee.

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

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.ends import EndTokens, as_tuple

PLACES = "hot_places"
KERNEL = "hot_logits"


def places(module: nn.Module, size: int) -> Int[Array, "V"]:
  """Declares the place of each token among the hot ones, K where it is none."""
  # An axis that T5X's rules leave whole.
  zeros = nn.initializers.zeros
  return param_with_axes(
    PLACES, zeros, (size,), jnp.int32, axes=("length",), module=module
  )


def spread(
  logits: Float[Array, "*B K"], places: Int[Array, "V"]
) -> Float[Array, "*B V"]:
  """Returns logits of all tokens from those of the hot ones: -inf for all others."""
  padding = [(0, 0)] * (logits.ndim - 1) + [(0, 1)]
  padded = jnp.pad(logits, padding, constant_values=-jnp.inf)
  return jnp.take(padded, places, axis=-1, mode="clip")


def size(shapes: Mapping[str, tuple[int, ...]], prefix: str = "") -> int:
  """Returns K of parameters of these shapes, by path; 0 where none are trimmed."""
  if prefix + PLACES not in shapes:
    return 0
  kernel = "logits_dense" if prefix else KERNEL
  return shapes[f"{prefix}{kernel}/kernel"][1]


def places_of(tokens: Sequence[int], vocab_size: int) -> Int[np.ndarray, "V"]:
  """Returns the place of each token among these, which ascend; K where it is none."""
  found = np.full(vocab_size, len(tokens), np.int32)
  found[np.asarray(tokens)] = np.arange(len(tokens))
  return found


def projection(params: Mapping[str, Any]) -> Float[np.ndarray, "D V"]:
  """Returns what a network's features are multiplied by to be logits."""
  decoder = params["decoder"]
  if "logits_dense" in decoder:
    return np.asarray(decoder["logits_dense"]["kernel"])
  table = np.asarray({**decoder, **params}["token_embedder"]["embedding"])
  return table.T / np.sqrt(table.shape[1], dtype=table.dtype)


def frequent(counts: Int[np.ndarray, "V"], size: int, eos_id: EndTokens) -> list[int]:
  """Returns the most frequent tokens, ascending, the end tokens among them.

  Args:
    counts: how often each token was there; of equal ones the lower number is taken.
    size: how many are taken.
    eos_id: the token that ends a sequence, or all such tokens.

  Raises:
    ValueError: where `size` is no number of tokens below the vocabulary's.
  """
  if not is_whole(size, 1) or size >= len(counts):
    raise ValueError(
      "DRAFT_VOCABULARY must be a whole number of at least 1, below the vocabulary's "
      f"{len(counts)} tokens, got {size!r}. It is how many tokens a draft may say."
    )
  counts = counts.copy()
  counts[list(as_tuple(eos_id))] = counts.sum() + 1
  return sorted(np.argsort(-counts, kind="stable")[:size].tolist())


def trimmed(
  config: Any, params: Mapping[str, Any], tokens: Sequence[int], head: Any
) -> tuple[Any, dict[str, Any]]:
  """Returns the configuration and the parameters of a draft trimmed to some tokens.

  Args:
    config: of the draft: a network's with a projection, or heads'.
    params: of the draft.
    tokens: the hot ones, ascending.
    head: the projection [D, V] that it has drafted by so far.
  """
  ids, params = np.asarray(tokens), dict(params)
  columns, found = head[:, ids], places_of(tokens, head.shape[1])
  if "decoder" in params:
    own = {PLACES: found, "logits_dense": {"kernel": columns}}
    params["decoder"] = {**params["decoder"], **own}
    known = {"logits_via_embedding": False}
  else:
    params |= {PLACES: found, KERNEL: {"kernel": columns}}
    known = {"vocab_size": len(found)}
    if config.rank:
      params["markov_logits"] = {"kernel": params["markov_logits"]["kernel"][:, ids]}
  return dataclasses.replace(config, hot=len(ids), **known), params
