"""The decoder-only T5X model of this project.

Prompts are the task's `inputs`, and decoding goes on from their ends; the start token
comes before a prompt, which may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping

from etils import epy
from t5x import models

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoders import Decoder
from specdec_t5x.t5x_bridge.model import Decodes

with epy.lazy_imports():
  import seqio


class DecoderOnlyModel(Decodes, models.DecoderOnlyModel):
  """A decoder-only model whose decoding is one of this project's loops.

  Its outputs have room for the task's targets, like an encoder-decoder's; T5X's own
  `DecoderOnlyModel` also gives them the room that a short prompt leaves.
  """

  def __init__(
    self,
    decoder: Decoder,
    vocabulary: seqio.Vocabulary,
    sampling: Sampling,
    task_feature_lengths: Mapping[str, int],
    seed: int = 0,
    default_decoder_params: models.DecoderParams | None = None,
    feature_converter_cls: type[seqio.FeatureConverter] | None = None,
    inputs_bidirectional_attention: bool = False,
  ):
    """Creates the model.

    Args:
      decoder: how it decodes; its networks are decoder-only.
      vocabulary: of prompts and outputs; its end tokens end a sequence.
      sampling: temperature, top-k, top-p.
      task_feature_lengths: the dataset's: most tokens of a prompt and of an output.
      seed: of the sampling.
      default_decoder_params: as the encoder-decoder's.
      feature_converter_cls: another converter than `seqio.DecoderFeatureConverter`.
      inputs_bidirectional_attention: must be False.

    Raises:
      ValueError: where prompts shall see all of themselves, num_decodes is below 1, a
        length is missing or the vocabulary outgrows the network.
    """
    if inputs_bidirectional_attention:
      raise ValueError(
        "Expected inputs_bidirectional_attention=False, got True: these networks' "
        "attention is causal in the prompt, too. Decode a prefix language model with "
        "T5X's own DecoderOnlyModel."
      )
    missing = {"inputs", "targets"} - set(task_feature_lengths)
    if missing:
      raise ValueError(
        "TASK_FEATURE_LENGTHS must give 'inputs' (the prompts) and 'targets' a length, "
        f"got {dict(task_feature_lengths)}. Prompts may be empty at any length."
      )
    super().__init__(
      decoder,
      sampling,
      seed,
      default_decoder_params,
      vocabulary=vocabulary,
      feature_converter_cls=feature_converter_cls,
    )
    self._prompt_length = task_feature_lengths["inputs"]
    self._max_length = task_feature_lengths["targets"]

  def read(self, batch):
    """Returns the prompts [B, P], without the start token, and the targets' length.

    decoder_causal_attention [B, L] marks both in decoder_input_tokens [B, L].
    """
    if "decoder_causal_attention" not in batch:
      raise ValueError(
        "Expected the feature decoder_causal_attention, which marks the prompts, got "
        f"{sorted(batch)}. Set TASK_FEATURE_LENGTHS of 'inputs' and 'targets', and the "
        "converter to seqio.DecoderFeatureConverter."
      )
    known = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]
    return known[:, 1 : self._prompt_length + 1], self._max_length
