"""The model interface of inference, and the encoder-decoder model.

A model joins a Flax module with vocabularies, a decode function and a feature
converter. Losses, metrics and training steps are not in the contract.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import seqio

from t5x import decoding

PyTree = Any
Batch = Mapping[str, jax.Array]
DecodeFnCallable = Callable[..., tuple[jax.Array, jax.Array]]


class BaseModel(abc.ABC):
  """What `t5x.infer` asks of a model."""

  FEATURE_CONVERTER_CLS: Callable[..., seqio.FeatureConverter]

  def __init__(self, optimizer_def: Any = None):
    # Training is not in the contract: stored for callers that look at it.
    self.optimizer_def = optimizer_def

  @abc.abstractmethod
  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_types: Mapping[str, jnp.dtype] | None = None,
  ) -> flax.core.FrozenDict:
    """Randomly initialised variables, with 'params' and 'params_axes'."""

  def predict_batch(
    self, params: PyTree, batch: Batch, rng: jax.Array | None = None
  ) -> jax.Array:
    """The best hypothesis of every row, without auxiliary values."""
    return self.predict_batch_with_aux(params=params, batch=batch, rng=rng)[0]

  @abc.abstractmethod
  def predict_batch_with_aux(
    self, params: PyTree, batch: Batch, rng: jax.Array | None = None
  ) -> tuple[jax.Array, Mapping[str, jax.Array]]:
    """Hypotheses and a mapping of per-row values."""

  @abc.abstractmethod
  def score_batch(
    self, params: PyTree, batch: Batch, return_intermediates: bool = False
  ):
    """Log-likelihood of every row's target."""


class BaseTransformerModel(BaseModel):
  """A model with vocabularies and a decode function."""

  def __init__(
    self,
    module: nn.Module,
    input_vocabulary: seqio.Vocabulary,
    output_vocabulary: seqio.Vocabulary,
    optimizer_def: Any = None,
    decode_fn: DecodeFnCallable | None = None,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    loss_normalizing_factor: Any = None,
  ):
    super().__init__(optimizer_def)
    self.module = module
    self._input_vocabulary = input_vocabulary
    self._output_vocabulary = output_vocabulary
    self._decode_fn = decode_fn
    self._label_smoothing = label_smoothing
    self._z_loss = z_loss
    self._loss_normalizing_factor = loss_normalizing_factor

  @property
  def input_vocabulary(self) -> seqio.Vocabulary:
    return self._input_vocabulary

  @property
  def output_vocabulary(self) -> seqio.Vocabulary:
    return self._output_vocabulary

  @property
  def decode_fn(self) -> DecodeFnCallable | None:
    return self._decode_fn

  @abc.abstractmethod
  def _compute_logits(
    self, params: PyTree, batch: Batch, dropout_rng: jax.Array | None = None
  ) -> jax.Array:
    """Logits [B, L, V] of the teacher-forced decoder."""


@dataclasses.dataclass(frozen=True)
class DecoderParams:
  """Defaults of `predict_batch_with_aux`.

  Attributes:
    return_all_decodes: whether all hypotheses are returned, or the best.
    num_decodes: hypotheses per row.
  """

  return_all_decodes: bool = False
  num_decodes: int = 1


class EncoderDecoderModel(BaseTransformerModel):
  """An encoder-decoder module with T5X's network interface.

  The training arguments (optimizer_def, label_smoothing, z_loss,
  loss_normalizing_factor) are stored and nothing more.
  """

  FEATURE_CONVERTER_CLS = seqio.EncDecFeatureConverter

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
    if feature_converter_cls is not None:
      self.FEATURE_CONVERTER_CLS = feature_converter_cls
    self._default_decoder_params = default_decoder_params or DecoderParams()
    super().__init__(
      module,
      input_vocabulary,
      output_vocabulary,
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
    types = input_types or {}
    ones = lambda name: jnp.ones(input_shapes[name], types.get(name, jnp.float32))
    encoder = ones("encoder_input_tokens")
    decoder = ones("decoder_input_tokens")
    variables = self.module.init(
      rng, encoder, decoder, decoder, decode=False, enable_dropout=False
    )
    return flax.core.freeze(variables)

  def _compute_logits(
    self,
    params: PyTree,
    batch: Batch,
    dropout_rng: jax.Array | None = None,
    mutable=False,
    other_variables: PyTree | None = None,
  ):
    """Logits [B, L, V], with the mutated variables where `mutable` is set."""
    packing = {
      key: batch[key]
      for side in ("encoder", "decoder")
      for key in (f"{side}_segment_ids", f"{side}_positions")
      if key in batch
    }
    return self.module.apply(
      {"params": params, **(other_variables or {})},
      batch["encoder_input_tokens"],
      batch["decoder_input_tokens"],
      batch["decoder_target_tokens"],
      **packing,
      decode=False,
      enable_dropout=dropout_rng is not None,
      rngs={} if dropout_rng is None else {"dropout": dropout_rng},
      mutable=mutable,
    )

  def _compute_logits_from_slice(
    self,
    decoding_state: decoding.DecodingState,
    params: PyTree,
    encoded_inputs: jax.Array,
    raw_inputs: jax.Array,
    max_decode_length: int,
  ) -> tuple[jax.Array, PyTree]:
    """One decoder step: the logits [rows, V] after `cur_token`, and the cache."""
    logits, variables = self.module.apply(
      {"params": params, "cache": decoding_state.cache},
      encoded_inputs,
      raw_inputs,
      decoding_state.cur_token,
      decoding_state.cur_token,
      enable_dropout=False,
      decode=True,
      max_decode_length=max_decode_length,
      mutable=["cache"],
      method=self.module.decode,
    )
    return jnp.squeeze(logits, axis=1), variables["cache"]

  def _compute_kv_cache(
    self,
    params: PyTree,
    encoded_inputs: jax.Array,
    encoder_input_tokens: jax.Array,
    decoder_input_tokens: jax.Array,
  ) -> PyTree:
    """An empty decoder cache for these shapes."""
    # In its first call with a mutable cache the module only creates the cache.
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
      batch: converted features; `decoder_input_tokens` gives the output's length.
      rng: passed to the decode function as decode_rng.
      decoder_params: further arguments of the decode function.
      return_all_decodes: all hypotheses, by increasing score, or the best.
      num_decodes: hypotheses per row.
      prompt_with_targets: the output starts with the tokens of the targets.

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
    expand = functools.partial(decoding.flat_batch_beam_expand, beam_size=num_decodes)
    tokens_to_logits = functools.partial(
      self._compute_logits_from_slice,
      params=params,
      encoded_inputs=expand(encoded),
      raw_inputs=expand(encoder_tokens),
      max_decode_length=decoder_tokens.shape[1],
    )
    if prompt_with_targets:
      prompts = jnp.where(
        decoder_tokens == self.output_vocabulary.eos_id, 0, decoder_tokens
      )
    else:
      prompts = jnp.zeros_like(decoder_tokens)
    decodes, scores = self._decode_fn(
      inputs=prompts,
      cache=cache,
      tokens_to_logits=tokens_to_logits,
      num_decodes=num_decodes,
      cache_offset=1 if getattr(self.module, "scan_layers", False) else 0,
      **self._decode_arguments(rng, decoder_params),
    )
    if return_all_decodes:
      return decodes, {"scores": scores}
    return decodes[:, -1, :], {"scores": scores[:, -1]}

  def _decode_arguments(self, rng, decoder_params) -> dict[str, Any]:
    arguments = {"eos_id": self.output_vocabulary.eos_id, **(decoder_params or {})}
    if rng is not None:
      if arguments.get("decode_rng") is not None:
        raise ValueError(
          "Expected one key, got `rng` and decoder_params['decode_rng']. Drop one."
        )
      arguments["decode_rng"] = rng
    return arguments

  def score_batch(
    self, params: PyTree, batch: Batch, return_intermediates: bool = False
  ):
    """Sum of log p(target token) over `decoder_loss_weights`, per row.

    With return_intermediates also what the module sowed, with the token scores, the
    weights and the targets under 'decoder'.
    """
    weights = batch["decoder_loss_weights"]
    targets = batch["decoder_target_tokens"]
    if return_intermediates:
      logits, modified = self._compute_logits(params, batch, mutable=["intermediates"])
    else:
      logits = self._compute_logits(params, batch)
    law = jax.nn.log_softmax(logits.astype(jnp.float32))
    token_scores = jnp.take_along_axis(law, targets[..., None], axis=-1)[..., 0]
    token_scores = token_scores * weights
    scores = jnp.sum(token_scores, axis=-1)
    if not return_intermediates:
      return scores
    sown = flax.core.unfreeze(modified.get("intermediates", {}))
    decoder = {
      **sown.get("decoder", {}),
      "loss_weights": (weights,),
      "target_tokens": (targets,),
      "token_scores": (token_scores,),
    }
    return scores, {**sown, "decoder": decoder}
