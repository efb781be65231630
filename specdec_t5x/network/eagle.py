"""EAGLE-3's drafter: a decoder layer that continues from the layer's outputs.

The layer reads the target's features at three depths, g_t = W [h_low; h_mid; h_high],
beside the next token x_{t+1}. The layer attends to previous positions and, by the
target's keys and values, to the input. The layer's output gives the next distribution.
The output is also g of the next step if the target has not reached that position. Each
drafted token is read before the next token is drawn, so q is the distribution of a
chain.

Training mirrors drafting (the paper's training-time test). Step i reads the outputs of
step i - 1 at all positions at once. Each position attends to the target's features up
to that position, and to the previous steps at that position.

Source: EAGLE-3, arXiv 2503.01840. In the paper the layer attends by features and tokens
side by side and has a separate projection. Here features and tokens are joined before
the layer, so that the target's last layer can initialise the layer, and logits come
from the target's projection or a trimmed projection (`hot`).

Shapes: B batch, L positions, N positions of a block, D width, F = 3 D, C steps.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from specdec_t5x.network.attention import KeyValues
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.heads import dense
from specdec_t5x.network.layers import LayerNorm
from specdec_t5x.network.parallel import LayerDrafter


class EagleDrafter(LayerDrafter):
  """Drafts token by token from the target's features and the layer's outputs."""

  taps = 3

  def setup(self):
    super().setup()
    cfg = self.config
    self.depth_norms = [LayerNorm(cfg.layer) for _ in range(self.taps)]
    self.depths = dense(cfg, cfg.emb_dim)

  def fused(self, features: Float[Array, "B L F"]) -> Float[Array, "B L D"]:
    """Returns g of the target's features of three depths, which are concatenated."""
    parts = jnp.split(features, self.taps, axis=-1)
    normed = [norm(x) for norm, x in zip(self.depth_norms, parts, strict=True)]
    return self.depths(jnp.concatenate(normed, axis=-1))

  def extend(
    self,
    cache: DecoderCache,
    features: Float[Array, "B N D"],
    embedded: Float[Array, "B N D"],
    target: DecoderCache,
  ) -> tuple[Float[Array, "B N D"], Float[Array, "B N D"], DecoderCache]:
    """Reads N positions per row after the positions in the cache.

    Args:
      cache: cache of the drafter.
      features: g of each position, from the target or the drafter.
      embedded: embedding of the token after each position.
      target: cache of the target, for the keys and values of the input.

    Returns:
      The features of the next distributions, the next g, and the cache.
    """
    rows, size = features.shape[:2]
    slots = jnp.tile(jnp.arange(cache.num_slots), (rows, 1))
    positions = cache.index[:, None] + jnp.arange(size)
    x, cache = self.attended_in_cache(
      self.joined(features, embedded),
      (positions, slots),
      slots[:, None] <= positions[:, :, None],
      cache,
      target,
    )
    return self.out_norm(x), x, cache.at(cache.index + size)

  def everywhere(
    self,
    features: Float[Array, "B L F"],
    embedded: Float[Array, "B L D"],
    same_example: Bool[Array, "B L L"],
    cross: KeyValues | None,
    cross_mask: Bool[Array, "B L E"] | None,
  ) -> Float[Array, "B L C D"]:
    """Returns the features of C steps from every position, for training."""
    index = jnp.arange(features.shape[1])
    # Keys of the first step come from the target, so a position sees all before. A key
    # of a later step belongs to the chain of one position.
    same_chain = jnp.broadcast_to(jnp.eye(index.size, dtype=bool), same_example.shape)
    visible = [same_example & (index <= index[:, None])]
    positions = [index]
    x = self.fused(features)
    key_values = None
    outputs = []

    def remember(new):
      if key_values is None:
        return new
      return jax.tree.map(lambda *x: jnp.concatenate(x, axis=2), key_values, new)

    for step in range(self.config.count):
      next_embedded = jnp.pad(embedded, ((0, 0), (0, step), (0, 0)))[:, step:]
      x, key_values = self.attended(
        self.joined(x, next_embedded),
        (positions[-1][None], jnp.concatenate(positions)[None]),
        jnp.concatenate(visible, axis=-1),
        remember,
        cross,
        cross_mask,
      )
      visible.append(same_chain)
      positions.append(index + step + 1)
      outputs.append(self.out_norm(x))
    return jnp.stack(outputs, axis=2)
