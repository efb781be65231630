"""The decoder-only model of inference; reached as `models.DecoderOnlyModel`."""

import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import seqio

from t5x import decoding
from t5x.model_base import BaseTransformerModel, Batch, DecodeFnCallable, PyTree

_PROMPT_MASK = "decoder_causal_attention"


class DecoderOnlyModel(BaseTransformerModel):
  """A decoder-only module with T5X's network interface.

  The feature converter joins inputs and targets to one sequence; the inputs are the
  prompt. The training arguments (optimizer_def, label_smoothing, z_loss,
  loss_normalizing_factor) are stored and nothing more.
  """

  FEATURE_CONVERTER_CLS = seqio.DecoderFeatureConverter

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
    if feature_converter_cls is not None:
      self.FEATURE_CONVERTER_CLS = feature_converter_cls
    self._inputs_bidirectional_attention = inputs_bidirectional_attention
    super().__init__(
      module,
      vocabulary,
      vocabulary,
      optimizer_def,
      decode_fn,
      label_smoothing,
      z_loss,
      loss_normalizing_factor,
    )

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_types: Mapping[str, jnp.dtype] | None = None,
  ) -> flax.core.FrozenDict:
    """Randomly initialised variables, with 'params' and 'params_axes'."""
    name = "decoder_input_tokens"
    ones = jnp.ones(input_shapes[name], (input_types or {}).get(name, jnp.float32))
    return flax.core.freeze(self.module.init(rng, ones, ones, enable_dropout=False))

  def _compute_logits(
    self,
    params: PyTree,
    batch: Batch,
    dropout_rng: jax.Array | None = None,
    mutable=False,
    other_variables: PyTree | None = None,
  ):
    """Logits [B, L, V], with the mutated variables where `mutable` is set."""
    return self.module.apply(
      {"params": params, **(other_variables or {})},
      batch["decoder_input_tokens"],
      batch["decoder_target_tokens"],
      decoder_segment_ids=batch.get("decoder_segment_ids"),
      decoder_positions=batch.get("decoder_positions"),
      decoder_causal_attention=self._bidirectional(batch.get(_PROMPT_MASK)),
      decode=False,
      enable_dropout=dropout_rng is not None,
      rngs={} if dropout_rng is None else {"dropout": dropout_rng},
      mutable=mutable,
    )

  def _bidirectional(self, prompt_mask: jax.Array | None) -> jax.Array | None:
    """Where the module attends both ways; None for a causal prompt."""
    if not self._inputs_bidirectional_attention:
      return None
    if prompt_mask is None:
      raise ValueError(
        f"inputs_bidirectional_attention=True needs the feature {_PROMPT_MASK!r}, and "
        "the batch has none. Give task_feature_lengths both 'inputs' and 'targets'."
      )
    return prompt_mask

  def _compute_logits_from_slice(
    self,
    decoding_state: decoding.DecodingState,
    params: PyTree,
    max_decode_length: int,
  ) -> tuple[jax.Array, PyTree]:
    """One decoder step: the logits [rows, V] after `cur_token`, and the cache."""
    logits, variables = self.module.apply(
      {"params": params, "cache": decoding_state.cache},
      decoding_state.cur_token,
      decoding_state.cur_token,
      enable_dropout=False,
      decode=True,
      max_decode_length=max_decode_length,
      mutable=["cache"],
    )
    return jnp.squeeze(logits, axis=1), variables["cache"]

  def _compute_kv_cache(
    self, params: PyTree, inputs: jax.Array, prompt_mask: jax.Array
  ) -> tuple[PyTree, jax.Array]:
    """The cache with each row's prompt but for its last token, and that token's index.

    The token at the index, the start token where a prompt is empty, is fed first: its
    logits are what the first output is drawn from.
    """
    lengths = jnp.sum(inputs[:, 1:] != 0, axis=1)
    run = functools.partial(self.module.apply, enable_dropout=False, mutable=["cache"])
    # In its first call with a mutable cache the module only creates the cache.
    ones = jnp.ones_like(inputs)
    _, variables = run({"params": params}, ones, ones, decode=True)
    _, variables = run(
      {"params": params, "cache": variables["cache"]},
      inputs,
      # As targets the mask lets attention reach the start token, which is 0 itself.
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
        prompt in decoder_input_tokens [B, L]. What follows there is not read.
      rng: passed to the decode function as decode_rng.
      return_all_decodes: all hypotheses, by increasing score, or the best.
      num_decodes: hypotheses per row.
      decoder_params: further arguments of the decode function.

    Returns:
      Tokens [B, L] of the best hypothesis, without the prompt and then zeros, and
      {'scores': [B]}; with `return_all_decodes` [B, N, L] and {'scores': [B, N]}.

    Raises:
      ValueError: where the batch marks no prompts.
    """
    if _PROMPT_MASK not in batch:
      raise ValueError(
        f"Expected the feature {_PROMPT_MASK!r}, which marks the prompts, got "
        f"{sorted(batch)}. Give task_feature_lengths both 'inputs' and 'targets'."
      )
    inputs = batch["decoder_input_tokens"] * batch[_PROMPT_MASK]
    cache, lengths = self._compute_kv_cache(params, inputs, batch[_PROMPT_MASK])
    decodes, scores = self._decode_fn(
      inputs=inputs,
      cache=cache,
      tokens_to_logits=functools.partial(
        self._compute_logits_from_slice,
        params=params,
        max_decode_length=inputs.shape[1],
      ),
      num_decodes=num_decodes,
      initial_index=lengths,
      cache_offset=1 if getattr(self.module, "scan_layers", False) else 0,
      **self._decode_arguments(rng, decoder_params),
    )
    if return_all_decodes:
      return remove_prefix(decodes, lengths), {"scores": scores}
    return remove_prefix(decodes[:, -1], lengths), {"scores": scores[:, -1]}


def remove_prefix(sequences: jax.Array, lengths: jax.Array) -> jax.Array:
  """Drops the first `lengths` [B] tokens of each row and fills up with zeros.

  Args:
    sequences: [B, ..., L].
    lengths: [B].
  """
  size = sequences.shape[-1]
  places = jnp.arange(size) + lengths.reshape(-1, *[1] * (sequences.ndim - 1))
  places = jnp.broadcast_to(places, sequences.shape)
  kept = jnp.take_along_axis(sequences, jnp.minimum(places, size - 1), axis=-1)
  return jnp.where(places < size, kept, 0)
