"""The decoder-only T5X model of this project.

The task's `inputs` are the prompts. The start token precedes a prompt. Decoding begins
at the end of the prompt. A prompt may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping

from etils import epy
from t5x import models

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.decoding.decoder import Decoder
from specdec_t5x.t5x_bridge.examples import NumberedConverter
from specdec_t5x.t5x_bridge.model import Decodes

with epy.lazy_imports():
  import seqio


class DecoderOnlyModel(Decodes, models.DecoderOnlyModel):
  """A decoder-only model with one of this project's decoding loops.

  An output is at most as long as the task's targets, as in an encoder-decoder. In T5X's
  own `DecoderOnlyModel`, an output after a short prompt may be longer, by the positions
  that the prompt leaves free.
  """

  FEATURE_CONVERTER_CLS = NumberedConverter("DecoderFeatureConverter")

  def __init__(
    self,
    decoder: Decoder,
    vocabulary: seqio.Vocabulary,
    sampling: Sampling,
    task_feature_lengths: Mapping[str, int],
    seed: int = 0,
    default_decoder_params: models.DecoderParams | None = None,
    feature_converter_cls: type[seqio.FeatureConverter] | None = None,
    *,
    inputs_bidirectional_attention: bool = False,
  ):
    """Creates the model.

    Args:
      decoder: the decoding loop, with decoder-only networks.
      vocabulary: vocabulary of prompts and outputs; the end tokens end a sequence.
      sampling: temperature, top-k, top-p.
      task_feature_lengths: maximal numbers of tokens of a prompt and of an output, as
        for the dataset.
      seed: seed of the sampling.
      default_decoder_params: as for `EncoderDecoderModel`.
      feature_converter_cls: a converter instead of `seqio.DecoderFeatureConverter`.
      inputs_bidirectional_attention: must be False.

    Raises:
      ValueError: if attention in prompts is to be bidirectional, num_decodes is below
        1, a length is missing, or the vocabulary is larger than the network's.
    """
    if inputs_bidirectional_attention:
      raise ValueError(
        "inputs_bidirectional_attention must be False, got True: the networks' "
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

    decoder_causal_attention [B, L] marks the start token and the prompt in
    decoder_input_tokens [B, L].
    """
    if "decoder_causal_attention" not in batch:
      raise ValueError(
        "Expected the feature decoder_causal_attention, the mask of the prompts, got "
        f"{sorted(batch)}. Set TASK_FEATURE_LENGTHS of 'inputs' and 'targets', and the "
        "converter to seqio.DecoderFeatureConverter."
      )
    prompts = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]
    return prompts[:, 1 : self._prompt_length + 1], self._max_length
