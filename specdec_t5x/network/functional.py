"""A network and its parameters as the functions that drafters and loops call."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_t5x.core.beam import BeamExtendFn
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.network.cache import DecoderCache
from specdec_t5x.network.transformer import Transformer


def start_decoding(
  module: Transformer,
  params,
  encoder_input_tokens: Int[Array, "B E"],
  num_slots: int,
  num_decodes: int = 1,
) -> tuple[ExtendFn, DecoderCache]:
  """Encodes the inputs, once, and makes room to decode from them.

  Args:
    module: the network.
    params: its parameters.
    encoder_input_tokens: the inputs, zero-padded.
    num_slots: cache slots of a row.
    num_decodes: rows an input; they stand next to each other.

  Returns:
    The network as an `ExtendFn`, and an empty cache.
  """
  variables = {"params": params}
  encoded = module.apply(
    variables, encoder_input_tokens, enable_dropout=False, method=module.encode
  )
  cache = module.apply(
    variables,
    jnp.repeat(encoded, num_decodes, axis=0),
    jnp.repeat(encoder_input_tokens, num_decodes, axis=0),
    num_slots,
    method=module.start,
  )

  def extend(cache, tokens, positions=None, tree=None):
    return module.apply(variables, cache, tokens, positions, tree, method=module.extend)

  return extend, cache


def start_beams(
  module: Transformer, params, encoder_input_tokens: Int[Array, "B E"], num_slots: int
) -> tuple[BeamExtendFn, DecoderCache]:
  """As `start_decoding`, with all hypotheses of an input in one row of the cache."""
  _, cache = start_decoding(module, params, encoder_input_tokens, num_slots)

  def extend(cache, tokens, key_positions, visible):
    logits, _, cache = module.apply(
      {"params": params},
      cache,
      tokens,
      key_positions,
      visible,
      method=module.extend_slots,
    )
    return logits, cache

  return extend, cache
