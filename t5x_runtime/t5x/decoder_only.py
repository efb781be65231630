"""The decoder-only model of inference, exported as `models.DecoderOnlyModel`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from etils import epy

from t5x import decoding
from t5x.model_base import (
  BaseTransformerModel,
  Batch,
  DecodeFnCallable,
  PyTree,
  SeqioConverter,
  best_of,
)

with epy.lazy_imports():
  import seqio

_PROMPT_MASK = "decoder_causal_attention"


class DecoderOnlyModel(BaseTransformerModel):
  """A decoder-only module with T5X's network interface.

  The feature converter concatenates inputs and targets. The inputs are the prompt. The
  training arguments (optimizer_def, label_smoothing, z_loss, loss_normalizing_factor)
  have no effect.
  """

  FEATURE_CONVERTER_CLS = SeqioConverter("DecoderFeatureConverter")
  _INPUTS = ("decoder_input_tokens",)

  def __init__(
    self,
    module: nn.Module,
    vocabulary: seqio.Vocabulary,
    optimizer_def: Any = None,
    decode_fn: DecodeFnCallable = decoding.temperature_sample,
    inputs_bidirectional_attention: bool = False,
    feature_converter_cls: Callable[..., seqio.FeatureConverter] | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    loss_normalizing_factor: Any = None,
  ):
    del optimizer_def, label_smoothing, z_loss, loss_normalizing_factor
    super().__init__(module, vocabulary, vocabulary, decode_fn, feature_converter_cls)
    self._inputs_bidirectional_attention = inputs_bidirectional_attention

  def _optional_inputs(self, batch: Batch) -> dict[str, jax.Array]:
    mask = self._bidirectional(batch.get(_PROMPT_MASK))
    return {**super()._optional_inputs(batch), _PROMPT_MASK: mask}

  def _bidirectional(self, prompt_mask: jax.Array | None) -> jax.Array | None:
    """Returns the mask of bidirectional attention; None for a causal prompt."""
    if not self._inputs_bidirectional_attention:
      return None
    if prompt_mask is None:
      raise ValueError(
        f"inputs_bidirectional_attention=True needs the feature {_PROMPT_MASK!r}, but "
        "the batch lacks the feature. Give task_feature_lengths 'inputs' and 'targets'."
      )
    return prompt_mask

  def _compute_logits_from_slice(
    self,
    decoding_state: decoding.DecodingState,
    params: PyTree,
    max_decode_length: int,
  ) -> tuple[jax.Array, PyTree]:
    """Returns the logits [rows, V] after `cur_token`, and the new cache."""
    return self._one_token(decoding_state, params, max_decode_length)

  def _compute_kv_cache(
    self, params: PyTree, inputs: jax.Array, prompt_mask: jax.Array
  ) -> tuple[PyTree, jax.Array]:
    """Returns a cache of the prompts without the last tokens, and the lengths.

    The prompt's length is the index of the last token of the prompt (of the start token
    if the prompt is empty). Decoding feeds this token first, and draws the first output
    from the resulting logits.
    """
    lengths = jnp.sum(inputs[:, 1:] != 0, axis=1)
    run = functools.partial(self.module.apply, enable_dropout=False, mutable=["cache"])
    # The module's first call with a mutable cache only creates the cache.
    ones = jnp.ones_like(inputs)
    _, variables = run({"params": params}, ones, ones, decode=True)
    _, variables = run(
      {"params": params, "cache": variables["cache"]},
      inputs,
      # With the mask as targets, attention includes the start token, which has id 0.
      prompt_mask,
      decoder_causal_attention=self._bidirectional(prompt_mask),
      prefill=True,
      prefill_lengths=lengths,
    )
    return variables["cache"], lengths

  def predict_batch_with_aux(
    self,
    params: PyTree,
    batch: Batch,
    rng: jax.Array | None = None,
    *,
    return_all_decodes: bool = False,
    num_decodes: int = 1,
    decoder_params: MutableMapping[str, Any] | None = None,
  ) -> tuple[jax.Array, Mapping[str, jax.Array]]:
    """Decodes a batch from its prompts.

    Args:
      params: the parameters.
      batch: converted features; decoder_causal_attention marks the start token and the
        prompt in decoder_input_tokens [B, L]. Later tokens are not used.
      rng: key for the decode function's decode_rng.
      return_all_decodes: whether to return all hypotheses, by increasing score, or only
        the best hypothesis.
      num_decodes: number of hypotheses per row.
      decoder_params: further arguments of the decode function.

    Returns:
      Tokens [B, L] of the best hypothesis, without the prompt and zero-padded, and
      {'scores': [B]}; with `return_all_decodes` [B, N, L] and {'scores': [B, N]}.

    Raises:
      ValueError: if the batch marks no prompts.
    """
    if _PROMPT_MASK not in batch:
      raise ValueError(
        f"Expected the feature {_PROMPT_MASK!r}, the mask of the prompts, got "
        f"{sorted(batch)}. Give task_feature_lengths 'inputs' and 'targets'."
      )
    inputs = batch["decoder_input_tokens"] * batch[_PROMPT_MASK]
    cache, lengths = self._compute_kv_cache(params, inputs, batch[_PROMPT_MASK])
    decodes, scores = self._decode(
      rng,
      decoder_params,
      inputs=inputs,
      cache=cache,
      tokens_to_logits=functools.partial(
        self._compute_logits_from_slice,
        params=params,
        max_decode_length=inputs.shape[1],
      ),
      num_decodes=num_decodes,
      initial_index=lengths,
    )
    return best_of(remove_prefix(decodes, lengths), scores, return_all_decodes)


def remove_prefix(sequences: jax.Array, lengths: jax.Array) -> jax.Array:
  """Removes the first `lengths` [B] tokens of each row, and pads with zeros.

  Args:
    sequences: [B, ..., L] tokens.
    lengths: [B] number of tokens to remove.
  """
  size = sequences.shape[-1]
  places = jnp.arange(size) + lengths.reshape(-1, *[1] * (sequences.ndim - 1))
  places = jnp.broadcast_to(places, sequences.shape)
  tokens = jnp.take_along_axis(sequences, jnp.minimum(places, size - 1), axis=-1)
  return jnp.where(places < size, tokens, 0)
