"""A table of n-grams as a network: a draft that costs one lookup per token.

The distribution after a context h = w_1 .. w_m interpolates orders by absolute
discounting (Ney, Essen and Kneser, 1994), from the longest known context on:

  q(x | h) = max(c(h, x) - d, 0) / c(h) + leftover(h) q(x | w_2 .. w_m).

A context keeps only the `width` likeliest x, and leftover(h) is the missing mass. For a
context outside the table leftover(h) is 1. The shortest context interpolates with the
unigram distribution. Leviathan et al., section 3.6, propose drafts of this kind.

The parameters are the table, in T5X's checkpoint format, as for any draft.
`training.ngrams` counts the table. A 32-bit hash finds contexts. If two contexts
collide, one context gets the other context's distribution. The draft's tokens are
sampled from the distribution that the table returns, so collisions keep exactness.

Shapes: B batch, N block, S slots, C contexts, W successors a context, V vocabulary.
"""

import dataclasses
import functools
from collections.abc import Mapping

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.partitioning import param_with_axes
from jaxtyping import Array, Bool, Float, Int, UInt32

from specdec_t5x.core.knobs import KnobError

# FNV-1a's prime and offset, applied to whole tokens.
_PRIME, _OFFSET = 16777619, 2166136261


@dataclasses.dataclass(frozen=True)
class NgramConfig:
  """The shape of a table, and the longest n-gram in use."""

  vocab_size: int  # Vocabulary size of the target, padding rows included.
  contexts: tuple[int, ...]  # Numbers of contexts of 1 token, of 2 tokens, and so on.
  width: int  # Successors that a context keeps (W).
  order: int  # Length of the longest n-gram in use: 1 for unigrams, 2 for bigrams.

  def __post_init__(self):
    longest = len(self.contexts) + 1
    if not 1 <= self.order <= longest:
      raise KnobError(
        "{order} must be from 1 to {longest}, the table's order, or 0 for {longest}, "
        "got {value}.",
        longest=longest,
        value=self.order,
      )


@flax.struct.dataclass
class TokenCache:
  """The tokens of each row, which form the contexts of n-grams."""

  index: Int[Array, "B"]  # Number of committed tokens of each row.
  tokens: Int[Array, "B S"]  # Committed tokens, then stale tokens from `index` on.

  def at(self, index: Int[Array, "B"]) -> "TokenCache":
    """Returns the cache rolled back (or committed) to `index` tokens per row."""
    return self.replace(index=index)

  def gathered(
    self, sources: Int[Array, "B M"], destination: Int[Array, "B"]
  ) -> "TokenCache":
    """Returns the cache with M tokens of each row copied; see `core.types.Cache`."""
    copies = jnp.take_along_axis(self.tokens, sources, axis=1)
    return self.replace(tokens=_write(self.tokens, copies, destination))


def _parameter(name, shape, dtype=jnp.float32):
  # T5X's rules do not divide these axes.
  axes = ("stack", "length")[: len(shape)]
  return param_with_axes(name, nn.initializers.zeros, shape, dtype, axes=axes)


class Contexts(nn.Module):
  """The contexts of one length, and the likeliest successors of each context."""

  count: int  # Number of contexts (C).
  width: int  # Successors that a context keeps (W).

  def setup(self):
    shape = self.count, self.width
    self.hashes = _parameter("hashes", shape[:1], jnp.uint32)
    self.leftover = _parameter("leftover", shape[:1])
    self.successors = _parameter("successors", shape, jnp.int32)
    self.probs = _parameter("probs", shape)

  def __call__(
    self,
    context: Int[Array, "B N M"],
    is_whole: Bool[Array, "B N"],
    shorter: Float[Array, "B N V"],
  ) -> Float[Array, "B N V"]:
    """Returns the distributions after contexts.

    A context that is incomplete or outside the table gets the distribution of the next
    shorter context.

    Args:
      context: the last M tokens before each position.
      is_whole: whether the sequence has all M tokens of the context.
      shorter: the distributions after the contexts of M - 1 tokens.
    """
    hashed = context_hash(context)
    at = jnp.minimum(jnp.searchsorted(self.hashes, hashed), self.count - 1)
    is_known = is_whole & (self.hashes[at] == hashed)
    distributions = jnp.where(is_known, self.leftover[at], 1.0)[..., None] * shorter
    probs = jnp.where(is_known[..., None], self.probs[at], 0.0)
    i, j = jnp.ogrid[: at.shape[0], : at.shape[1]]
    return distributions.at[i[..., None], j[..., None], self.successors[at]].add(probs)


class NgramTable(nn.Module):
  """Looks up distributions, with the `start` and `extend` of all networks here."""

  config: NgramConfig

  def setup(self):
    cfg = self.config
    self.unigram = _parameter("unigram", (cfg.vocab_size,))
    # Parameters `contexts_1` hold the contexts of two tokens, for trigrams.
    self.contexts = [Contexts(count, cfg.width) for count in cfg.contexts]

  def start(
    self, encoded: None, inputs: Int[Array, "B E"], num_slots: int
  ) -> TokenCache:
    """Returns an empty cache of `num_slots` tokens per row."""
    rows = len(inputs)
    tokens = jnp.zeros((rows, num_slots), jnp.int32)
    return TokenCache(jnp.zeros(rows, jnp.int32), tokens)

  def extend(
    self, cache: TokenCache, tokens: Int[Array, "B N"], positions=None, tree=None
  ) -> tuple[Float[Array, "B N V"], Float[Array, "B N 0"], TokenCache]:
    """Returns the log-probabilities after each token, empty features, and the cache.

    `positions` [B, M] and `tree` [B, N, M] are as in `CachedNetwork.extend`.
    """
    size = tokens.shape[1]
    written = _write(cache.tokens, tokens, cache.index)
    slots = cache.index[:, None] + jnp.arange(size)
    places = slots if tree is None else positions[:, -size:]
    # Each context ends at the new token. The shortest context is the new token alone.
    context_positions = places[..., None] + jnp.arange(2 - self.config.order, 1)
    rows = jnp.arange(tokens.shape[0])[:, None, None]
    context = written[rows, jnp.maximum(context_positions, 0)]
    if tree is not None:
      is_at = positions[:, None, None] == context_positions[..., None]
      is_ancestor = tree[:, :, None] & is_at
      first = cache.index[:, None] + size - tree.shape[2]
      slot = first[..., None] + is_ancestor.argmax(axis=-1)
      context = jnp.where(is_ancestor.any(axis=-1), written[rows, slot], context)
    logits = jnp.log(self.probs_after(context, places))
    cache = TokenCache(cache.index + size, written)
    return logits, jnp.zeros((*tokens.shape, 0)), cache

  def probs_after(
    self, context: Int[Array, "B N L"], places: Int[Array, "B N"]
  ) -> Float[Array, "B N V"]:
    """Returns the distributions after contexts.

    Args:
      context: the last L tokens before each distribution.
      places: position of the last token of each context. The first position is 0.
    """
    shape = *places.shape, self.config.vocab_size
    distributions = jnp.broadcast_to(self.unigram, shape)
    for i, contexts in enumerate(self.contexts[: self.config.order - 1]):
      last = context[..., context.shape[-1] - 1 - i :]
      distributions = contexts(last, places >= i, distributions)
    return distributions

  def __call__(self, *tokens: Int[Array, "B _"], **settings) -> Float[Array, "B L V"]:
    """Returns the log-probabilities of targets. T5X initialises networks by this call.

    Args:
      *tokens: tokens of the encoder, if any, of the decoder's input and of the targets.
      **settings: settings of T5X, which are ignored.
    """
    del settings
    for contexts in self.contexts:
      contexts.hashes  # noqa: B018 - creates the parameters beyond `order`, too.
    inputs = tokens[-2]
    return self.extend(self.start(None, inputs, inputs.shape[1]), inputs)[0]


def context_hash(
  context: Int[Array | np.ndarray, "*B M"],
) -> UInt32[Array | np.ndarray, "*B"]:
  """Returns the hash of contexts of M tokens.

  Accepts NumPy arrays, which count the table, and JAX arrays, which look up contexts.
  """
  context = context.astype("uint32")
  prime, offset = (context.dtype.type(number) for number in (_PRIME, _OFFSET))
  hashed = context[..., 0] * 0 + offset
  for i in range(context.shape[-1]):
    hashed = (hashed ^ context[..., i]) * prime
  return hashed


def config_from_shapes(
  shapes: Mapping[str, tuple[int, ...]], order: int = 0
) -> NgramConfig:
  """Returns the configuration of the table with parameters of these shapes.

  Args:
    shapes: shape of each parameter by path, for example contexts_0/probs.
    order: length of the longest n-gram to use; 0 for the table's longest.

  Raises:
    ValueError: if the shapes are not a table's, or the table has no n-grams of length
      `order`.
  """
  if "unigram" not in shapes:
    raise ValueError(
      "Expected a table of n-grams, got a checkpoint with the parameters "
      f"{sorted(shapes)[:2]} and more. Make a table with python -m specdec_t5x.train "
      "--job=ngrams."
    )
  longest = sum(name.endswith("/probs") for name in shapes)
  sizes = [shapes.get(f"contexts_{i}/probs", ()) for i in range(longest)]
  if len(shapes["unigram"]) != 1 or any(len(size) != 2 for size in sizes):
    raise ValueError(
      f"The table of n-grams is incomplete: 'unigram' has shape {shapes['unigram']}, "
      f"the contexts have {sizes}. Expected (vocabulary,), and (contexts, width) for "
      "every length. Make or copy the table again."
    )
  return NgramConfig(
    vocab_size=shapes["unigram"][0],
    contexts=tuple(count for count, _ in sizes),
    width=sizes[0][1] if sizes else 1,
    order=order or longest + 1,
  )


def _write(rows, new, index):
  write_row = functools.partial(jax.lax.dynamic_update_slice_in_dim, axis=0)
  return jax.vmap(write_row)(rows, new, index)
