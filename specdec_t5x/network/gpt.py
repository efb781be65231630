"""A decoder-only network in Flax linen, with T5X's parameter names and logical axes.

The network is T5's decoder without an encoder: relative position biases, pre-norm, no
bias terms. The prompt precedes the output in the same cache. One `extend` reads the
prompt.

Shapes: B batch, L length, P prompt, D width, V vocabulary.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.config import GptConfig
from specdec_t5x.network.decoder import CachedNetwork, Decoder
from specdec_t5x.network.layers import Embed


class GptTransformer(CachedNetwork):
  """A language model; parameters interchange with T5X's `examples/decoder_only`."""

  config: GptConfig

  cross_attention = False

  def setup(self):
    self.decoder = Decoder(self.config, cross_attention=False)

  @property
  def token_embedder(self) -> Embed:
    """The embedding, which T5X keeps inside the decoder."""
    return self.decoder.token_embedder

  # ---- Decoding with a cache that has one index per row. ----

  def start(
    self, encoded: None, inputs: Int[Array, "B P"], num_slots: int
  ) -> DecoderCache:
    """Returns an empty cache of `num_slots` tokens per row, prompts included."""
    return self.empty_cache(len(inputs), num_slots)

  # ---- T5X's network interface. ----

  def __call__(
    self,
    decoder_input_tokens,
    decoder_target_tokens,
    decoder_segment_ids=None,
    decoder_positions=None,
    decoder_causal_attention=None,
    *,
    enable_dropout=True,
    decode=False,
    max_decode_length=None,
    prefill=False,
    prefill_lengths=None,
  ):
    """Returns the logits [B, L, V] of the targets given the previous tokens.

    T5X's samplers use the mutable collection "cache". With `prefill`, the inputs also
    fill the collection up to `prefill_lengths`. With `decode`, a first call on tokens
    of the full length makes the collection. Each further call scores one token per row
    against the collection.

    Raises:
      ValueError: if the prompt's attention is not causal.
    """
    del decoder_positions, max_decode_length  # The mask and the cache imply them.
    if decoder_causal_attention is not None:
      raise ValueError(
        "decoder_causal_attention must be None: the network's attention is causal in "
        "the prompt, too. Set inputs_bidirectional_attention=False."
      )
    cache = self.empty_cache(*decoder_input_tokens.shape)
    has_collection = decode and self.has_variable("cache", "cache_index")
    if has_collection or prefill:
      lengths = None if has_collection else prefill_lengths
      return self.extend_collection(cache, decoder_input_tokens, lengths)
    if decode:
      self.put_collection(cache, jnp.zeros((), jnp.int32))
    return self.logits(
      self.features(
        decoder_input_tokens,
        decoder_target_tokens,
        decoder_segment_ids,
        enable_dropout=enable_dropout,
      )
    )
