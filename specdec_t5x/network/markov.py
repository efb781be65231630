"""A bias of the token before: what makes a chain of positions that are drafted apart.

Heads and parallel drafters give the logits U_k of many positions at once, whatever is
drafted before. With the bias those of position k are

  U_k + W1[x_{k-1}] W2,

W1 of V x r, W2 of r x V. Tokens are drawn from left to right, each from its own
distribution given the one before; the first one's is the last known token.

Source: DSpark, arXiv 2607.05147 (its Markov head).

Shapes: V vocabulary, r rank.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specdec_t5x.core.checks import is_whole
from specdec_t5x.network import hot
from specdec_t5x.network.layers import Dense, parameter

# Small: each device has them whole.
WHOLE = (None, None)
TOKENS, LOGITS = "markov_tokens", "markov_logits"
# Of heads that earlier versions trained: weights that nothing reads any more.
UNREAD = "confidence"


class PositionDrafter(nn.Module):
  """What networks that draft from a target's features have in common.

  Attributes:
    config: has `vocab_size`, `rank` of the bias, 0 without one, and `hot`, tokens of a
      projection of its own, 0: it has the target's.
    reads_path: whether its features depend on the tokens drafted before.
    taps: depths of the target whose features it reads.
  """

  config: Any
  reads_path: ClassVar[bool] = False
  taps: ClassVar[int] = 1

  def bias(self, tokens: Int[Array, "*B"]) -> Float[Array, "*B V"]:
    """Returns what the logits of the positions after these tokens gain."""
    rows = jnp.take(self._own(TOKENS), tokens, axis=0, mode="clip")
    return self._projected(LOGITS, rows)

  def logits(self, features: Float[Array, "*B D"]) -> Float[Array, "*B V"]:
    """Returns the logits of drafted features, of a network trimmed to hot tokens."""
    return self._projected(hot.KERNEL, features)

  def of_tokens(self, tokens: Int[Array, "*B"]) -> None:
    """Reads the parameters that features do not, so that they are made."""
    if self.config.rank:
      self.bias(tokens)
    if self.config.hot:
      self.logits(jnp.zeros((1, self.config.emb_dim)))

  def _projected(self, name, rows):
    logits = self._own(name)(rows).astype(jnp.float32)
    return hot.spread(logits, self._own(hot.PLACES)) if self.config.hot else logits

  @nn.compact
  def _own(self, name: str) -> Array | Dense:
    """Returns a parameter, or a projection to tokens, by its name."""
    cfg = self.config
    if name == TOKENS:
      normal, shape = nn.initializers.normal(1.0), (cfg.vocab_size, cfg.rank)
      return parameter(self, name, normal, shape, WHOLE)
    if name == hot.PLACES:
      return hot.places(self, cfg.vocab_size)
    # Of zeros: a bias begins as none.
    kind = nn.initializers.zeros, cfg.dtype, cfg.products
    return Dense(cfg.hot or cfg.vocab_size, WHOLE, *kind, name=name)


def check(config: Any) -> None:
  """Raises a ValueError where a configuration's bias has no such rank."""
  if not is_whole(config.rank, 0) or (config.rank > 0 and config.vocab_size < 1):
    raise ValueError(
      "MARKOV_RANK must be a whole number of at least 0, and vocab_size the target's "
      f"where it is not 0, got {config.rank!r} and {config.vocab_size!r}. 0 is no "
      "bias; 64 to 256 are usual."
    )


def knobs(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
  """Returns the knobs that parameters of these shapes, by path, say."""
  size, rank = shapes.get(TOKENS, (0, 0))
  (size,) = shapes.get(hot.PLACES, (size,))
  return {"vocab_size": size, "rank": rank, "hot": hot.size(shapes)}


def without(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
  """Returns the shapes of the parameters that make features."""
  own = ("markov_", "hot_")
  return {name: x for name, x in shapes.items() if not name.startswith(own)}
