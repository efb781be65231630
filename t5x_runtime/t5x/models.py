"""The models of inference: encoder-decoder here, decoder-only in `decoder_only`.

A model combines a Flax module with vocabularies, a decode function and a feature
converter. Losses, metrics and training steps are not in T5X's inference contract
(docs/t5x_contract.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from t5x import decoding
from t5x.decoder_only import DecoderOnlyModel as DecoderOnlyModel
from t5x.model_base import BaseModel as BaseModel
from t5x.model_base import (
  BaseTransformerModel,
  Batch,
  DecodeFnCallable,
  DecoderParams,
  PyTree,
  SeqioConverter,
  best_of,
)

with epy.lazy_imports():
  import seqio


class EncoderDecoderModel(BaseTransformerModel):
  """An encoder-decoder module with T5X's network interface.

  The training arguments (optimizer_def, label_smoothing, z_loss,
  loss_normalizing_factor) have no effect.
  """

  FEATURE_CONVERTER_CLS = SeqioConverter("EncDecFeatureConverter")
  _INPUTS = ("encoder_input_tokens", "decoder_input_tokens")

  def __init__(
    self,
    module: nn.Module,
    input_vocabulary: seqio.Vocabulary,
    output_vocabulary: seqio.Vocabulary,
    optimizer_def: Any = None,
    decode_fn: DecodeFnCallable = decoding.beam_search,
    feature_converter_cls: Callable[..., seqio.FeatureConverter] | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    loss_normalizing_factor: Any = None,
    default_decoder_params: DecoderParams | None = None,
  ):
    del optimizer_def, label_smoothing, z_loss, loss_normalizing_factor
    super().__init__(
      module, input_vocabulary, output_vocabulary, decode_fn, feature_converter_cls
    )
    self._default_decoder_params = default_decoder_params or DecoderParams()

  def plain_features(
    self, example: Mapping[str, Any], lengths: Mapping[str, int], task: str, place: int
  ) -> dict[str, np.ndarray]:
    """Returns the features of seqio.EncDecFeatureConverter, computed with NumPy alone.

    `t5x.infer` therefore reads tasks of plain texts without TensorFlow.

    Args:
      example: tokens of inputs and targets.
      lengths: zero-padded lengths of inputs and targets.
      task: name of the task. Here unused; a subclass may add features that depend on
        the example's number, as keys for sampling.
      place: place of the example in the task; unused, as `task`.
    """
    del task, place
    inputs = np.zeros(lengths["inputs"])
    inputs[: len(example["inputs"])] = example["inputs"]
    targets = np.zeros(lengths["targets"])
    targets[: len(example["targets"])] = example["targets"]
    features = {
      "encoder_input_tokens": inputs,
      "decoder_target_tokens": targets,
      "decoder_input_tokens": np.concatenate([[0], targets[:-1]]),
      "decoder_loss_weights": targets != 0,
    }
    return {name: x.astype(np.int32) for name, x in features.items()}

  def _compute_logits_from_slice(
    self,
    decoding_state: decoding.DecodingState,
    params: PyTree,
    encoded_inputs: jax.Array,
    raw_inputs: jax.Array,
    max_decode_length: int,
  ) -> tuple[jax.Array, PyTree]:
    """Returns the logits [rows, V] after `cur_token`, and the new cache."""
    return self._one_token(
      decoding_state,
      params,
      max_decode_length,
      encoded_inputs,
      raw_inputs,
      method=self.module.decode,
    )

  def _compute_kv_cache(
    self,
    params: PyTree,
    encoded_inputs: jax.Array,
    encoder_input_tokens: jax.Array,
    decoder_input_tokens: jax.Array,
  ) -> PyTree:
    """Returns an empty decoder cache for these shapes."""
    # The module's first call with a mutable cache only creates the cache.
    ones = jnp.ones_like(decoder_input_tokens)
    _, variables = self.module.apply(
      {"params": params},
      encoded_inputs,
      encoder_input_tokens,
      ones,
      ones,
      decode=True,
      enable_dropout=False,
      mutable=["cache"],
      method=self.module.decode,
    )
    return variables["cache"]

  def predict_batch_with_aux(
    self,
    params: PyTree,
    batch: Batch,
    rng: jax.Array | None = None,
    decoder_params: MutableMapping[str, Any] | None = None,
    return_all_decodes: bool | None = None,
    num_decodes: int | None = None,
    prompt_with_targets: bool = False,
  ) -> tuple[jax.Array, Mapping[str, jax.Array]]:
    """Decodes a batch.

    Args:
      params: the parameters.
      batch: converted features. The width of `decoder_input_tokens` is the output's
        length.
      rng: key for the decode function's decode_rng.
      decoder_params: further arguments of the decode function.
      return_all_decodes: whether to return all hypotheses, by increasing score, or only
        the best hypothesis. None takes the value of `default_decoder_params`.
      num_decodes: number of hypotheses per row; None as for `return_all_decodes`.
      prompt_with_targets: whether the output starts with the targets' tokens, without
        EOS.

    Returns:
      Tokens [B, L] and {'scores': [B]}; [B, N, L] and [B, N] for all hypotheses.
    """
    defaults = self._default_decoder_params
    if num_decodes is None:
      num_decodes = defaults.num_decodes
    if return_all_decodes is None:
      return_all_decodes = defaults.return_all_decodes
    encoder_tokens = batch["encoder_input_tokens"]
    decoder_tokens = batch["decoder_input_tokens"]
    encoded = self.module.apply(
      {"params": params},
      encoder_tokens,
      enable_dropout=False,
      method=self.module.encode,
    )
    cache = self._compute_kv_cache(params, encoded, encoder_tokens, decoder_tokens)
    # The decode function repeats only the cache for the hypotheses of a row.
    expand = functools.partial(decoding.flat_batch_beam_expand, beam_size=num_decodes)
    tokens_to_logits = functools.partial(
      self._compute_logits_from_slice,
      params=params,
      encoded_inputs=expand(encoded),
      raw_inputs=expand(encoder_tokens),
      max_decode_length=decoder_tokens.shape[1],
    )
    prompts = jnp.zeros_like(decoder_tokens)
    if prompt_with_targets:
      # A prompt with EOS would end the output.
      is_eos = decoder_tokens == self.output_vocabulary.eos_id
      prompts = jnp.where(is_eos, 0, decoder_tokens)
    decodes, scores = self._decode(
      rng,
      decoder_params,
      inputs=prompts,
      cache=cache,
      tokens_to_logits=tokens_to_logits,
      num_decodes=num_decodes,
    )
    return best_of(decodes, scores, return_all_decodes)
