"""The models of inference: encoder-decoder and decoder-only.

A model combines a Flax module with vocabularies, a decode function and a feature
converter. Losses, metrics and training steps are not in T5X's inference contract
(docs/t5x_contract.md).
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from etils import epy

from t5x import decoding

with epy.lazy_imports():
  import seqio

PyTree = Any
Batch = Mapping[str, jax.Array]
DecodeFnCallable = Callable[..., tuple[jax.Array, jax.Array]]

_PROMPT_MASK = "decoder_causal_attention"


class SeqioConverter:
  """Makes a feature converter of seqio, which is imported on first use.

  Args:
    name: name of the converter in seqio.
  """

  def __init__(self, name: str):
    self._name = name

  def __call__(self, **settings: Any) -> seqio.FeatureConverter:
    return getattr(seqio, self._name)(**settings)


class PlainConverter(SeqioConverter):
  """The converter of encoder-decoder models, also without seqio."""

  def __init__(self):
    super().__init__("EncDecFeatureConverter")

  def plain_features(
    self, example: Mapping[str, Any], lengths: Mapping[str, int], task: str, place: int
  ) -> dict[str, np.ndarray]:
    """Returns the features of seqio.EncDecFeatureConverter, computed with NumPy alone.

    `t5x.infer` therefore reads tasks of plain texts without TensorFlow.

    Args:
      example: tokens of inputs and targets.
      lengths: zero-padded lengths of inputs and targets.
      task: name of the task. Here unused; other converters may add features that depend
        on the example's number, as keys for sampling.
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


class BaseTransformerModel(abc.ABC):
  """The interface of a model for `t5x.infer`.

  Args:
    module: a module with T5X's network interface.
    input_vocabulary: vocabulary of the task's inputs.
    output_vocabulary: vocabulary of the task's targets.
    decode_fn: decode function.
    feature_converter_cls: a feature converter instead of the class's converter.
  """

  FEATURE_CONVERTER_CLS: Callable[..., seqio.FeatureConverter]
  # Names of the module's inputs before the decoder's targets.
  _INPUTS: tuple[str, ...]

  def __init__(
    self,
    module: nn.Module,
    input_vocabulary: seqio.Vocabulary,
    output_vocabulary: seqio.Vocabulary,
    decode_fn: DecodeFnCallable | None = None,
    feature_converter_cls: Callable[..., seqio.FeatureConverter] | None = None,
  ):
    self.module = module
    self.input_vocabulary = input_vocabulary
    self.output_vocabulary = output_vocabulary
    self.decode_fn = decode_fn
    if feature_converter_cls is not None:
      self.FEATURE_CONVERTER_CLS = feature_converter_cls

  def get_initial_variables(
    self,
    rng: jax.Array,
    input_shapes: Mapping[str, tuple[int, ...]],
    input_types: Mapping[str, jnp.dtype] | None = None,
  ) -> flax.core.FrozenDict:
    """Returns randomly initialised variables, with 'params' and 'params_axes'."""
    types = input_types or {}
    tokens = [
      jnp.ones(input_shapes[name], types.get(name, jnp.float32))
      for name in self._INPUTS
    ]
    # Targets have the shape of the decoder's inputs.
    variables = self.module.init(
      rng, *tokens, tokens[-1], decode=False, enable_dropout=False
    )
    return flax.core.freeze(variables)

  def predict_batch(
    self, params: PyTree, batch: Batch, rng: jax.Array | None = None
  ) -> jax.Array:
    """Returns the best hypothesis of every row, without auxiliary values."""
    return self.predict_batch_with_aux(params=params, batch=batch, rng=rng)[0]

  @abc.abstractmethod
  def predict_batch_with_aux(
    self, params: PyTree, batch: Batch, rng: jax.Array | None = None
  ) -> tuple[jax.Array, Mapping[str, jax.Array]]:
    """Returns hypotheses and a mapping of per-row values."""

  def _compute_logits(
    self, params: PyTree, batch: Batch, **module_inputs: Any
  ) -> jax.Array:
    """Returns logits [B, L, V]; `module_inputs` are further inputs of the module."""
    return self.module.apply(
      {"params": params},
      *(batch[name] for name in self._INPUTS),
      batch["decoder_target_tokens"],
      decode=False,
      enable_dropout=False,
      **module_inputs,
    )

  def _one_token(self, state, params, max_decode_length, *inputs, **kwargs):
    """Returns the logits [rows, V] after the state's `cur_token`, and the new cache."""
    logits, variables = self.module.apply(
      {"params": params, "cache": state.cache},
      *inputs,
      state.cur_token,
      state.cur_token,
      enable_dropout=False,
      decode=True,
      max_decode_length=max_decode_length,
      mutable=["cache"],
      **kwargs,
    )
    return jnp.squeeze(logits, axis=1), variables["cache"]

  def _decode(self, rng, decoder_params, **arguments) -> tuple[jax.Array, jax.Array]:
    """Calls the decode function; returns decodes [B, N, L] and scores [B, N]."""
    arguments |= {"eos_id": self.output_vocabulary.eos_id, **(decoder_params or {})}
    if rng is not None:
      if arguments.get("decode_rng") is not None:
        raise ValueError(
          "Expected one key, got `rng` and decoder_params['decode_rng']. Leave one out."
        )
      arguments["decode_rng"] = rng
    is_scanned = getattr(self.module, "scan_layers", False)
    return self.decode_fn(cache_offset=1 if is_scanned else 0, **arguments)

  def score_batch(self, params: PyTree, batch: Batch) -> jax.Array:
    """Computes the sum of `decoder_loss_weights` * log p(target token), per row."""
    logits = self._compute_logits(params, batch)
    distribution = jax.nn.log_softmax(logits.astype(jnp.float32))
    targets = batch["decoder_target_tokens"][..., None]
    token_scores = jnp.take_along_axis(distribution, targets, axis=-1)[..., 0]
    return jnp.sum(token_scores * batch["decoder_loss_weights"], axis=-1)


def best_of(
  decodes: jax.Array, scores: jax.Array, return_all_decodes: bool
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns all decodes and scores, or the last decode and score of each row."""
  if return_all_decodes:
    return decodes, {"scores": scores}
  return decodes[:, -1], {"scores": scores[:, -1]}


@dataclasses.dataclass(frozen=True)
class DecoderParams:
  """Defaults of `predict_batch_with_aux`."""

  return_all_decodes: bool = False  # Or only the best hypothesis.
  num_decodes: int = 1  # Number of hypotheses per row.


class EncoderDecoderModel(BaseTransformerModel):
  """An encoder-decoder module with T5X's network interface.

  The training arguments (optimizer_def, label_smoothing, z_loss,
  loss_normalizing_factor) have no effect.
  """

  FEATURE_CONVERTER_CLS = PlainConverter()
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

  def predict_batch_with_aux(
    self,
    params: PyTree,
    batch: Batch,
    rng: jax.Array | None = None,
    decoder_params: MutableMapping[str, Any] | None = None,
    return_all_decodes: bool | None = None,
    num_decodes: int | None = None,
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
    run = functools.partial(self.module.apply, {"params": params}, enable_dropout=False)
    encoded = run(encoder_tokens, method=self.module.encode)
    # The module's first call with a mutable cache only creates the cache.
    ones = jnp.ones_like(decoder_tokens)
    _, variables = run(
      encoded,
      encoder_tokens,
      ones,
      ones,
      decode=True,
      mutable=["cache"],
      method=self.module.decode,
    )
    # The decode function repeats only the cache for the hypotheses of a row.
    expand = functools.partial(decoding.repeat_rows, count=num_decodes)
    tokens_to_logits = functools.partial(
      self._compute_logits_from_slice,
      params=params,
      encoded_inputs=expand(encoded),
      raw_inputs=expand(encoder_tokens),
      max_decode_length=decoder_tokens.shape[1],
    )
    decodes, scores = self._decode(
      rng,
      decoder_params,
      inputs=jnp.zeros_like(decoder_tokens),
      cache=variables["cache"],
      tokens_to_logits=tokens_to_logits,
      num_decodes=num_decodes,
    )
    return best_of(decodes, scores, return_all_decodes)


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

  def _compute_logits(self, params: PyTree, batch: Batch) -> jax.Array:
    mask = _prompt_mask(batch) if self._inputs_bidirectional_attention else None
    return super()._compute_logits(params, batch, decoder_causal_attention=mask)

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
    mask = prompt_mask if self._inputs_bidirectional_attention else None
    run = functools.partial(self.module.apply, enable_dropout=False, mutable=["cache"])
    # The module's first call with a mutable cache only creates the cache.
    ones = jnp.ones_like(inputs)
    _, variables = run({"params": params}, ones, ones, decode=True)
    _, variables = run(
      {"params": params, "cache": variables["cache"]},
      inputs,
      # With the mask as targets, attention includes the start token, which has id 0.
      prompt_mask,
      decoder_causal_attention=mask,
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
    mask = _prompt_mask(batch)
    inputs = batch["decoder_input_tokens"] * mask
    cache, lengths = self._compute_kv_cache(params, inputs, mask)
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


def _prompt_mask(batch: Batch) -> jax.Array:
  """Returns the mask of the start token and the prompts, or raises a ValueError."""
  if _PROMPT_MASK not in batch:
    raise ValueError(
      f"Expected the feature {_PROMPT_MASK!r}, the mask of the prompts, got "
      f"{sorted(batch)}. Give task_feature_lengths 'inputs' and 'targets'."
    )
  return batch[_PROMPT_MASK]


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
