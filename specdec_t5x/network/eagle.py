"""EAGLE-3's drafter: one decoder layer that goes on from its own outputs.

The target's features at three depths, g_t = W [h_low; h_mid; h_high], stand beside the
token x_{t+1} after them. A layer reads both, attends to the positions before and, by
the target's own keys and values, to the input; its output is the feature that the next
distribution comes from, and g of the next step, where the target has not been yet. So
each drafted token is read before the next one is drawn: q is a chain's.

Training does as drafting does (the paper's training-time test): step i reads the
outputs of step i - 1 at all positions at once, and each position attends to what the
target gave up to its own, and to its own steps.

Source: EAGLE-3, arXiv 2503.01840. There the layer attends by both inputs side by side,
and the projection is its own; here they are joined before it, so that it can begin as
the target's last layer, and the target's projection, or a trimmed one (`hot`), makes
logits.

Shapes: B batch, L positions, N of a block, D width, F = 3 D, C steps.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specdec_t5x.network import cache as cache_lib
from specdec_t5x.network.attention import KeyValues
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.heads import REPLICATED
from specdec_t5x.network.layers import Dense, LayerNorm
from specdec_t5x.network.parallel import LayerDrafter


class EagleDrafter(LayerDrafter):
  """Drafts token by token from the target's features and its own."""

  taps = 3

  def setup(self):
    super().setup()
    cfg = self.config
    self.depth_norms = [LayerNorm(cfg.layer) for _ in range(self.taps)]
    self.depths = Dense(cfg.emb_dim, REPLICATED, dtype=cfg.dtype, products=cfg.products)

  def fused(self, features: Float[Array, "B L F"]) -> Float[Array, "B L D"]:
    """Returns g of the target's features, those of three depths side by side."""
    parts = jnp.split(features, self.taps, axis=-1)
    parts = [norm(x) for norm, x in zip(self.depth_norms, parts, strict=True)]
    return self.depths(jnp.concatenate(parts, axis=-1))

  def extend(
    self,
    cache: DecoderCache,
    features: Float[Array, "B N D"],
    embedded: Float[Array, "B N D"],
    target: DecoderCache,
    positions: Int[Array, "B M"] | None = None,
    tree: Bool[Array, "B N M"] | None = None,
  ) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"], DecoderCache]:
    """Reads N positions a row after those in the cache.

    Args:
      cache: its own.
      features: g of each position, the target's or its own.
      embedded: the tokens after these.
      target: the target's cache, for its keys and values of the input.
      positions: of the last M entries, these among them, where they are a tree's nodes;
        else one stands after the other.
      tree: which of those each node sees.

    Returns:
      The features that the next distributions come from, the next g, and the cache.
    """
    (rows, size), slots = features.shape[:2], jnp.arange(cache.num_slots)
    if tree is None:
      positions = cache.index[:, None] + jnp.arange(size)
      tree = jnp.broadcast_to(jnp.tri(size, dtype=bool), (rows, size, size))
    last = cache.index[:, None] + size - tree.shape[2] + jnp.arange(tree.shape[2])
    of_slots = jnp.broadcast_to(slots, (rows, slots.size))
    of_slots = of_slots.at[jnp.arange(rows)[:, None], last].set(positions)
    x, (keys, values) = self.attended(
      self.joined(features, embedded),
      (positions[:, -size:], of_slots),
      cache_lib.block_mask(cache.index, cache.num_slots, tree),
      lambda new: tuple(
        cache_lib.write(buffer, x, cache.index)
        for (buffer,), x in zip((cache.keys, cache.values), new, strict=True)
      ),
      *self.of_target(target),
    )
    cache = DecoderCache(cache.index + size, (keys,), (values,))
    return self.out_norm(x), x, cache

  def everywhere(
    self,
    features: Float[Array, "B L F"],
    embedded: Float[Array, "B L D"],
    same_example: Bool[Array, "B L L"],
    cross: KeyValues | None,
    cross_mask: Bool[Array, "B L E"] | None,
  ) -> Float[Array, "B L C D"]:
    """Returns the features of C steps from every position, for training."""
    at = jnp.arange(features.shape[1])
    # The first step's keys are of what the target gave; later ones each of one chain.
    of_chain = jnp.broadcast_to(jnp.eye(at.size, dtype=bool), same_example.shape)
    seen, places = [same_example & (at <= at[:, None])], [at]
    x, known, found = self.fused(features), (), []
    for step in range(self.config.count):
      after = jnp.pad(embedded, ((0, 0), (0, step), (0, 0)))[:, step:]
      remember = lambda new, known=known: tuple(
        jnp.concatenate(pair, axis=2) for pair in zip(*known, new, strict=True)
      )
      x, key_values = self.attended(
        self.joined(x, after),
        (places[-1][None], jnp.concatenate(places)[None]),
        jnp.concatenate(seen, axis=-1),
        remember,
        cross,
        cross_mask,
      )
      known = (key_values,)
      seen, places = [*seen, of_chain], [*places, at + step + 1]
      found.append(self.out_norm(x))
    return jnp.stack(found, axis=2)
