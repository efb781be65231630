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
  ):
    """Creates the model; the further arguments are those of `Decodes`, and T5X's.

    Args:
      task_feature_lengths: maximal numbers of tokens of a prompt and of an output, as
        for the dataset.
    """
    super().__init__(
      decoder, sampling, seed, default_decoder_params, vocabulary=vocabulary
    )
    self._lengths = task_feature_lengths

  def read(self, batch):
    """Returns the prompts [B, P], without the start token, and the targets' length.

    decoder_causal_attention [B, L] marks the start token and the prompt in
    decoder_input_tokens [B, L].
    """
    prompts = batch["decoder_input_tokens"] * batch["decoder_causal_attention"]
    return prompts[:, 1 : self._lengths["inputs"] + 1], self._lengths["targets"]
