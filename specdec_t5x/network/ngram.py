"""A table of n-grams as a network: a draft that costs a lookup a token.

The distribution after a context h = w_1 .. w_m interpolates orders by absolute
discounting (Ney, Essen and Kneser, 1994), the longest known context first:

  q(x | h) = max(c(h, x) - d, 0) / c(h) + leftover(h) q(x | w_2 .. w_m),

where only the `width` likeliest x of a context are kept and leftover(h) is the mass
that those lack. For a context that the table lacks it is 1; after the shortest one
stands the unigram distribution. Leviathan et al., section 3.6, propose drafts of this
kind.

The parameters are the table, in T5X's checkpoint format like any draft's;
`training.ngrams` counts it. Contexts are found by a 32-bit hash: where two collide, one
gets the other's distribution, which is still the distribution that its tokens are
sampled from.

Shapes: B batch, N block, S slots, C contexts, W successors a context, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.partitioning import param_with_axes
from jaxtyping import Array, Bool, Float, Int, UInt32

# FNV-1a's prime and offset, applied to whole tokens.
_PRIME, _OFFSET = 16777619, 2166136261
# Axes that T5X's rules leave whole on every device.
_WHOLE = ("stack", "length")


@dataclasses.dataclass(frozen=True)
class NgramConfig:
  """The shape of a table, and how much of it is used.

  Attributes:
    vocab_size: of the target that it drafts for, padding rows included.
    contexts: how many contexts there are of 1 token, of 2, and so on.
    width: successors that a context keeps (W).
    order: the longest n-gram that is looked up: 1 unigrams, 2 bigrams, and so on.
  """

  vocab_size: int
  contexts: tuple[int, ...]
  width: int
  order: int

  def __post_init__(self):
    longest = len(self.contexts) + 1
    if not 1 <= self.order <= longest:
      raise ValueError(
        f"NGRAM_ORDER must be from 1 to {longest}, which is the table's, or 0 for "
        f"{longest}; got {self.order}."
      )


@flax.struct.dataclass
class TokenCache:
  """The tokens of each row: all that an n-gram's context is made of.

  Attributes:
    index: number of committed tokens of each row.
    tokens: those tokens; stale at and beyond `index`.
  """

  index: Int[Array, "B"]
  tokens: Int[Array, "B S"]

  def at(self, index: Int[Array, "B"]) -> "TokenCache":
    """Returns the cache rolled back (or committed) to `index` tokens a row."""
    return self.replace(index=index)

  def gathered(
    self, sources: Int[Array, "B M"], destination: Int[Array, "B"]
  ) -> "TokenCache":
    """Returns the cache with tokens of each row copied from anywhere in it.

    Args:
      sources: the slots to copy, all read before the first is written.
      destination: the M copies go to slots destination .. destination + M - 1.
    """
    copies = jnp.take_along_axis(self.tokens, sources, axis=1)
    return self.replace(tokens=_write(self.tokens, copies, destination))


class Contexts(nn.Module):
  """The contexts of one length, and what may follow each.

  Attributes:
    count: how many (C).
    width: successors that each keeps (W).
  """

  count: int
  width: int

  def setup(self):
    table = lambda name, shape, dtype: param_with_axes(
      name, nn.initializers.zeros, shape, dtype, axes=_WHOLE[: len(shape)]
    )
    self.hashes = table("hashes", (self.count,), jnp.uint32)
    self.leftover = table("leftover", (self.count,), jnp.float32)
    self.successors = table("successors", (self.count, self.width), jnp.int32)
    self.probs = table("probs", (self.count, self.width), jnp.float32)

  def __call__(
    self,
    context: Int[Array, "B N M"],
    is_whole: Bool[Array, "B N"],
    shorter: Float[Array, "B N V"],
  ) -> Float[Array, "B N V"]:
    """Returns the distributions after contexts, given those after one token less.

    Where a context is not whole or not in the table, that is the shorter one's.
    """
    hashed = context_hash(context)
    at = jnp.minimum(jnp.searchsorted(self.hashes, hashed), self.count - 1)
    is_known = is_whole & (self.hashes[at] == hashed)
    distributions = jnp.where(is_known, self.leftover[at], 1.0)[..., None] * shorter
    probs = jnp.where(is_known[..., None], self.probs[at], 0.0)
    i, j = jnp.ogrid[: at.shape[0], : at.shape[1]]
    return distributions.at[i[..., None], j[..., None], self.successors[at]].add(probs)


class NgramTable(nn.Module):
  """Looks distributions up; started and extended like any network of this project."""

  config: NgramConfig

  def setup(self):
    cfg = self.config
    self.unigram = param_with_axes(
      "unigram", nn.initializers.zeros, (cfg.vocab_size,), jnp.float32, axes=_WHOLE[:1]
    )
    # `contexts_2` holds the contexts of two tokens, which is trigrams.
    self.contexts = [Contexts(count, cfg.width) for count in cfg.contexts]

  def encode(
    self, inputs: Int[Array, "B E"], enable_dropout: bool = False
  ) -> Float[Array, "B 0 0"]:
    """Returns an encoding without content: inputs are not looked at."""
    del enable_dropout
    return jnp.zeros((inputs.shape[0], 0, 0))

  def start(
    self, encoded: Float[Array, "B 0 0"], inputs: Int[Array, "B E"], num_slots: int
  ) -> TokenCache:
    """Returns an empty cache of `num_slots` tokens a row."""
    del encoded
    rows = inputs.shape[0]
    tokens = jnp.zeros((rows, num_slots), jnp.int32)
    return TokenCache(jnp.zeros(rows, jnp.int32), tokens)

  def extend(
    self, cache: TokenCache, tokens: Int[Array, "B N"], positions=None, tree=None
  ) -> tuple[Float[Array, "B N V"], Float[Array, "B N 0"], TokenCache]:
    """Returns the logarithms of the probs after each token, no features, the cache.

    `positions` [B, M] and `tree` [B, N, M] are as `CachedNetwork.extend`'s.
    """
    size = tokens.shape[1]
    written = _write(cache.tokens, tokens, cache.index)
    slots = cache.index[:, None] + jnp.arange(size)
    places = slots if tree is None else positions[:, -size:]
    # The longest context ends at the token itself, the shortest is that token.
    where = places[..., None] + jnp.arange(2 - self.config.order, 1)
    rows = jnp.arange(tokens.shape[0])[:, None, None]
    context = written[rows, jnp.maximum(where, 0)]
    if tree is not None:
      seen = tree[:, :, None] & (positions[:, None, None] == where[..., None])
      first = cache.index[:, None] + size - tree.shape[2]
      slot = first[..., None] + seen.argmax(axis=-1)
      context = jnp.where(seen.any(axis=-1), written[rows, slot], context)
    logits = jnp.log(self.probs_after(context, places))
    cache = TokenCache(cache.index + size, written)
    return logits, jnp.zeros((*tokens.shape, 0)), cache

  def probs_after(
    self, context: Int[Array, "B N L"], places: Int[Array, "B N"]
  ) -> Float[Array, "B N V"]:
    """Returns the probs after contexts of L tokens, the last of which has its place.

    No token stands before place 0.
    """
    distributions = jnp.broadcast_to(
      self.unigram, (*places.shape, self.config.vocab_size)
    )
    for length in range(1, self.config.order):
      shorter = context[..., context.shape[-1] - length :]
      distributions = self.contexts[length - 1](
        shorter, places >= length - 1, distributions
      )
    return distributions

  def __call__(self, *tokens: Int[Array, "B _"], **settings) -> Float[Array, "B L V"]:
    """Returns log-probs of the targets; as T5X calls a network to initialise it.

    Args:
      *tokens: those of the encoder, if there is one, of the decoder's input and of its
        targets.
      **settings: T5X's, none of which a table has use for.
    """
    del settings
    for contexts in self.contexts:
      contexts.hashes  # noqa: B018 - beyond `order`, too, what the checkpoint has.
    inputs = tokens[-2]
    empty = TokenCache(jnp.zeros(inputs.shape[0], jnp.int32), jnp.zeros_like(inputs))
    return self.extend(empty, inputs)[0]


def context_hash(
  context: Int[Array | np.ndarray, "*B M"],
) -> UInt32[Array | np.ndarray, "*B"]:
  """Returns the number that a context of M tokens has in the table.

  Takes NumPy arrays, too: the table is counted with those and read with JAX's.
  """
  context = context.astype("uint32")
  prime, offset = (context.dtype.type(number) for number in (_PRIME, _OFFSET))
  hashed = context[..., 0] * 0 + offset
  for i in range(context.shape[-1]):
    hashed = (hashed ^ context[..., i]) * prime
  return hashed


def is_table(shapes: Mapping[str, tuple[int, ...]]) -> bool:
  """Returns whether parameters of these shapes are a table's."""
  return "unigram" in shapes


def config_from_shapes(
  shapes: Mapping[str, tuple[int, ...]], order: int = 0
) -> NgramConfig:
  """Returns the configuration of the table with these parameters.

  Args:
    shapes: of each parameter by its path, as contexts_0/probs.
    order: look up no longer n-grams than these; 0 for all that the table has.

  Raises:
    ValueError: where they are not a table's, or it has no n-grams that long.
  """
  if not is_table(shapes):
    raise ValueError(
      f"This is no table of n-grams: it has parameters {sorted(shapes)[:2]} and so on. "
      "Expected one that python -m specdec_t5x.train --job=ngrams made."
    )
  longest = sum(name.endswith("/probs") for name in shapes)
  sizes = [shapes.get(f"contexts_{i}/probs", ()) for i in range(longest)]
  if len(shapes["unigram"]) != 1 or any(len(size) != 2 for size in sizes):
    raise ValueError(
      f"This is no whole table of n-grams: 'unigram' has shape {shapes['unigram']}, "
      f"the contexts {sizes}. Expected (vocabulary,) and (contexts, width) of each "
      "length; make or copy it again."
    )
  return NgramConfig(
    vocab_size=shapes["unigram"][0],
    contexts=tuple(count for count, _ in sizes),
    width=sizes[0][1] if sizes else 1,
    order=order or longest + 1,
  )


def _write(rows, new, index):
  write_row = jax.vmap(
    lambda row, block, start: jax.lax.dynamic_update_slice_in_dim(row, block, start, 0)
  )
  return write_row(rows, new, index)
