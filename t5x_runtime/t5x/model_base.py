"""What models have in common: vocabularies, a decode function, and scoring."""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import seqio

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
    self,
    params: PyTree,
    batch: Batch,
    dropout_rng: jax.Array | None = None,
    mutable=False,
    other_variables: PyTree | None = None,
  ):
    """Logits [B, L, V], with the mutated variables where `mutable` is set."""

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


@dataclasses.dataclass(frozen=True)
class DecoderParams:
  """Defaults of `predict_batch_with_aux`.

  Attributes:
    return_all_decodes: whether all hypotheses are returned, or the best.
    num_decodes: hypotheses per row.
  """

  return_all_decodes: bool = False
  num_decodes: int = 1
