"""The base of models: a module, vocabularies, a decode function, scoring."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
from etils import epy

with epy.lazy_imports():
  import seqio

PyTree = Any
Batch = Mapping[str, jax.Array]
DecodeFnCallable = Callable[..., tuple[jax.Array, jax.Array]]

_OPTIONAL = tuple(
  f"{side}_{what}"
  for side in ("encoder", "decoder")
  for what in ("segment_ids", "positions")
)


class SeqioConverter:
  """A class attribute with a feature converter of seqio, imported on first use."""

  def __init__(self, name: str):
    self._name = name

  def __get__(self, model, owner=None) -> type[seqio.FeatureConverter]:
    return getattr(seqio, self._name)


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
    self._input_vocabulary = input_vocabulary
    self._output_vocabulary = output_vocabulary
    self.decode_fn = decode_fn
    if feature_converter_cls is not None:
      self.FEATURE_CONVERTER_CLS = feature_converter_cls

  def takes_plain_features(self) -> bool:
    """Returns whether `plain_features` computes the same features as the converter."""
    converter = inspect.getattr_static(self, "FEATURE_CONVERTER_CLS")
    return hasattr(self, "plain_features") and isinstance(converter, SeqioConverter)

  @property
  def input_vocabulary(self) -> seqio.Vocabulary:
    return self._input_vocabulary

  @property
  def output_vocabulary(self) -> seqio.Vocabulary:
    return self._output_vocabulary

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
    self,
    params: PyTree,
    batch: Batch,
    dropout_rng: jax.Array | None = None,
    mutable=False,
    other_variables: PyTree | None = None,
  ):
    """Returns logits [B, L, V], together with the mutated variables if `mutable`."""
    return self.module.apply(
      {"params": params, **(other_variables or {})},
      *(batch[name] for name in self._INPUTS),
      batch["decoder_target_tokens"],
      **self._optional_inputs(batch),
      decode=False,
      enable_dropout=dropout_rng is not None,
      rngs={} if dropout_rng is None else {"dropout": dropout_rng},
      mutable=mutable,
    )

  def _optional_inputs(self, batch: Batch) -> dict[str, jax.Array]:
    """Returns the module's further inputs, in packed batches."""
    return {name: batch[name] for name in _OPTIONAL if name in batch}

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

  def score_batch(
    self, params: PyTree, batch: Batch, return_intermediates: bool = False
  ):
    """Computes the sum of `decoder_loss_weights` * log p(target token), per row.

    With return_intermediates, also returns the module's intermediates, with the token
    scores, the weights and the targets under 'decoder'.
    """
    weights = batch["decoder_loss_weights"]
    targets = batch["decoder_target_tokens"]
    if return_intermediates:
      logits, modified = self._compute_logits(params, batch, mutable=["intermediates"])
    else:
      logits = self._compute_logits(params, batch)
    distribution = jax.nn.log_softmax(logits.astype(jnp.float32))
    token_scores = jnp.take_along_axis(distribution, targets[..., None], axis=-1)[
      ..., 0
    ]
    token_scores = token_scores * weights
    scores = jnp.sum(token_scores, axis=-1)
    if not return_intermediates:
      return scores
    intermediates = flax.core.unfreeze(modified.get("intermediates", {}))
    decoder = {
      **intermediates.get("decoder", {}),
      "loss_weights": (weights,),
      "target_tokens": (targets,),
      "token_scores": (token_scores,),
    }
    return scores, {**intermediates, "decoder": decoder}


# The name of upstream's base class; this runtime has only one base class.
BaseModel = BaseTransformerModel


def best_of(
  decodes: jax.Array, scores: jax.Array, return_all_decodes: bool
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """Returns all decodes and scores, or the last decode and score of each row."""
  if return_all_decodes:
    return decodes, {"scores": scores}
  return decodes[:, -1], {"scores": scores[:, -1]}


@dataclasses.dataclass(frozen=True)
class DecoderParams:
  """Defaults of `predict_batch_with_aux`.

  Attributes:
    return_all_decodes: whether to return all hypotheses, or the best.
    num_decodes: number of hypotheses per row.
  """

  return_all_decodes: bool = False
  num_decodes: int = 1
