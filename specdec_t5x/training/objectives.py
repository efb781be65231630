"""The objectives of training: labels, or a target's distributions.

Shapes: B batch, L length, E encoder length, D width, V vocabulary.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float, Key

from specdec_t5x.network.functional import (
  Network,
  check_same_kind,
  is_decoder_only,
  lacks_encoder,
)
from specdec_t5x.training import losses

Batch = Mapping[str, jax.Array]
Params = Any


class Judged(NamedTuple):
  """The loss of each token, and whether the argmax is correct."""

  losses: Float[Array, "B L"]
  hits: Bool[Array, "B L"]


class Objective(abc.ABC):
  """A loss of each token of a batch under teacher forcing."""

  @abc.abstractmethod
  def __call__(
    self,
    network: Network,
    params: Params,
    batch: Batch,
    frozen: Params,
    dropout_key: Key[Array, ""] | None = None,
  ) -> Judged:
    """Computes the loss of each token.

    Args:
      network: the network in training.
      params: the network's parameters.
      batch: tokens and, if examples are packed, segment ids.
      frozen: parameters that this objective reads and that training does not change.
      dropout_key: key that turns dropout on; the key is consumed.
    """


@dataclasses.dataclass(frozen=True)
class Supervised(Objective):
  """Cross-entropy with the batch's tokens (`losses.cross_entropy`)."""

  z_loss: float = 0.0

  def __post_init__(self):
    if not 0.0 <= self.z_loss < float("inf"):
      raise ValueError(
        f"Z_LOSS must be a finite number of at least 0, got {self.z_loss}. 0 is off; "
        "T5 pre-training uses 1e-4."
      )

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Computes the loss of each token; see `Objective`."""
    del frozen
    logits = forward(network, params, batch, dropout_key)
    tokens = batch["decoder_target_tokens"]
    values = losses.cross_entropy(logits, tokens, self.z_loss)
    return Judged(values, logits.argmax(-1) == tokens)


@dataclasses.dataclass(frozen=True)
class TokenDistillation(Objective):
  """A distance to a frozen target's distribution at each token, by teacher forcing."""

  # The network with the target's distribution and the parameters `frozen`.
  target: Network
  distance: losses.DistillationLoss = losses.forward_kl

  def __call__(self, network, params, batch, frozen, dropout_key=None) -> Judged:
    """Computes the loss of each token; see `Objective`."""
    options = {}
    if lacks_encoder(network):
      options["encoded"] = self.target.apply(
        {"params": frozen},
        batch["encoder_input_tokens"],
        batch.get("encoder_segment_ids"),
        enable_dropout=False,
        method="encode",
      )
    logits = forward(network, params, batch, dropout_key, **options)
    target_logits = forward(self.target, frozen, batch, **options)
    values = self.distance(target_logits, logits)
    return Judged(values, logits.argmax(-1) == batch["decoder_target_tokens"])


def check_comparable(target: Network, student: Network) -> None:
  """Raises a ValueError if the distributions of two networks can't be compared."""
  check_same_kind(target, student)
  expected = target.config.vocab_size
  size = student.config.vocab_size
  if size != expected:
    raise ValueError(
      "A distillation target and a student must share a vocabulary: the target's "
      f"vocab_size is {expected}, and the student's is {size}. Give the student the "
      "target's vocabulary and vocab_size (padding rows included)."
    )


def forward(
  network: Network,
  params: Params,
  batch: Batch,
  dropout_key: Key[Array, ""] | None = None,
  method: str = "__call__",
  **options: Float[Array, "B E D"] | int,
) -> Float[Array, "B L _"]:
  """Computes the logits of a batch under teacher forcing.

  Args:
    network: the network.
    params: the network's parameters.
    batch: tokens and, if examples are packed, segment ids.
    dropout_key: key that turns dropout on; the key is consumed.
    method: the network's method; 'features' returns features instead of logits.
    **options: `encoded`, the encoded input, if available; `taps` of features.
  """
  tokens = [batch["decoder_input_tokens"], batch["decoder_target_tokens"]]
  segments = {"decoder_segment_ids": batch.get("decoder_segment_ids")}
  if not is_decoder_only(network):
    tokens.insert(0, batch["encoder_input_tokens"])
    segments["encoder_segment_ids"] = batch.get("encoder_segment_ids")
  return network.apply(
    {"params": params},
    *tokens,
    **segments,
    enable_dropout=dropout_key is not None,
    rngs=None if dropout_key is None else {"dropout": dropout_key},
    method=method,
    **options,
  )
