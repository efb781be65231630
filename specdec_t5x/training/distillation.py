"""Distillation of a draft by `python -m t5x.train`, the trainer of upstream T5X.

The parameters are {target, draft}, as in every speculative model, so T5X's evaluations
during training decode speculatively with the current draft.
"""

import os
from collections.abc import Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp

from specdec_t5x.checkpoints.checkpoint import Checkpoint, flat_shapes
from specdec_t5x.checkpoints.parameters import T5XParameters
from specdec_t5x.checkpoints.readers import abstract_state
from specdec_t5x.decoding.decoders import SpeculativeDecoder
from specdec_t5x.t5x_bridge import preflight
from specdec_t5x.t5x_bridge.model import EncoderDecoderModel
from specdec_t5x.training.objectives import TokenDistillation, check_same_vocabulary


class DistillationModel(EncoderDecoderModel):
  """A speculative model that trains the draft on the target's distributions.

  Attributes:
    optimizer_def: T5X's optimizer, for the draft's parameters only.
  """

  optimizer_def = None

  def __init__(
    self,
    decoder: SpeculativeDecoder,
    *args: Any,
    optimizer_def: Any,
    loss: str = "forward_kl",
    **kwargs: Any,
  ):
    """Creates the model; the other arguments are those of `EncoderDecoderModel`.

    Args:
      decoder: a decoder with a target and a draft model, 'draft'.
      *args: the vocabularies and the sampling.
      optimizer_def: T5X's optimizer, for the draft's parameters only (`of_draft`).
      loss: a name in `losses.DISTILLATION_LOSSES`.
      **kwargs: options of `EncoderDecoderModel`.

    Raises:
      ValueError: if the networks are not a target and a draft model.
    """
    super().__init__(decoder, *args, **kwargs)
    if set(decoder.networks) != {"target", "draft"}:
      raise ValueError(
        "T5X's trainer distils a draft model, got a decoder of the networks "
        f"{sorted(decoder.networks)}. Leave DRAFTER at 'draft_model'; train heads and "
        "tables with python -m specdec_t5x.train."
      )
    check_same_vocabulary(decoder.target, decoder.networks["draft"])
    self.optimizer_def = optimizer_def
    self._objective = TokenDistillation(decoder.target, loss)

  def loss_fn(self, params, batch, dropout_rng):
    """Returns the sum of the tokens' losses, and T5X's metrics of the draft."""
    weights = batch["decoder_loss_weights"]
    frozen = jax.lax.stop_gradient(params["target"])
    draft = self.decoder.networks["draft"]
    values, logits = self._objective.judged(
      draft, params["draft"], batch, frozen, dropout_rng
    )
    loss = jnp.where(weights > 0, values * weights, 0.0).sum()
    segments = {
      name.removesuffix("_segment_ids"): ids
      for name, ids in batch.items()
      if name.endswith("_segment_ids")
    }
    return loss, self._compute_metrics(
      logits=logits,
      targets=batch["decoder_target_tokens"],
      mask=weights,
      loss=loss,
      segment_ids=segments,
    )


def of_draft() -> flax.traverse_util.Traversal:
  """Selects the draft's parameters, for T5X's `optimizers.MultiOptimizer`."""
  return flax.traverse_util.ModelParamTraversal(
    lambda path, _: path.startswith("/draft/")
  )


class SaveDraft:
  """T5X's action after each evaluation: writes a checkpoint of the draft alone.

  T5X's checkpoints hold target, draft and the optimizer's state, to resume training.
  """

  def __init__(self, model: DistillationModel, model_dir: str):
    """Prepares to write the model's draft to the folder `draft` of `model_dir`."""
    folder = os.path.join(model_dir, "draft")
    self._writer = T5XParameters(model.decoder.networks["draft"], folder)

  def run(self, train_state: Any, metrics_by_task: Any) -> bool:
    """Writes draft/checkpoint_<step>, and returns False: training continues."""
    del metrics_by_task
    self._writer.save(int(train_state.step), train_state.params["draft"])
    return False


def check(dataset_cfg: Any, model: Any, paths: Mapping[str, str | None]) -> None:
  """Checks a run before model work, as T5X's `train.verify_matching_vocabs_fn`.

  Args:
    dataset_cfg: configuration of the dataset for training or evaluation.
    model: a `DistillationModel`.
    paths: paths of the networks' checkpoints by name; None for random initial
      parameters.
  """
  preflight.check_macros()
  preflight.check_task(dataset_cfg)
  model.check_max_length(dataset_cfg.task_feature_lengths["targets"])
  for name, path in paths.items():
    if path is None and name != "target":
      continue
    macro = f"{name.upper()}_CHECKPOINT_PATH"
    shapes = flat_shapes(abstract_state(model.decoder.networks[name]).params)
    Checkpoint.of_network(path, macro, shapes)
