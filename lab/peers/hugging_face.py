"""Hugging Face transformers with our weights: plain and assisted greedy decoding.

The settings favour the peer: no padding and no mask of the input (our programs pad to a
fixed shape), scaled-dot-product attention, GELU as a single kernel, every core, no
gradients.

The module works around two defects of transformers 5.23 with encoder-decoders:

1. `generate` sizes the decoder cache by the number of encoder layers; `export` sets the
   number to the decoder's.
2. Without a `decoder_attention_mask`, the draft of assisted generation reads the whole
   output again at each call of the target, and appends the tokens to a cache that
   already has them. The draft then continues a wrong text, and its work grows with the
   square of the output. (Outputs stay right, because the target judges.) With a mask of
   ones the draft reads only new tokens (`assisted`), and tokens per call equal ours: on
   a Multi30k pair at gamma 7, 3.25 instead of 3.11.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from specdec_t5x.decoding.state import START_TOKEN

PAD = 0

# (input ids [1, E], zero-padded) -> output ids [1, N], N <= max_length.
Program = Callable[[np.ndarray], np.ndarray]


def plain(
  network: Any, max_length: int, eos_id: int, copied: int | None = None
) -> Program:
  """Returns greedy decoding, a token per call.

  Args:
    network: from `export.to_torch`.
    max_length: most tokens of an output.
    eos_id: the EOS id.
    copied: most tokens that "prompt lookup" copies from the output as a draft; None
      drafts nothing.
  """
  settings = _settings(max_length, eos_id)
  settings.prompt_lookup_num_tokens = copied
  return lambda ids: _generate(network, ids, settings)


def assisted(
  target: Any,
  draft: Any,
  max_length: int,
  eos_id: int,
  gamma: int | None,
  mask: bool = True,
) -> Program:
  """Returns greedy decoding with a draft ("assisted generation").

  Args:
    target: from `export.to_torch`.
    draft: from `export.to_torch`; the call stores settings in the draft, so no other
      program may use the draft.
    max_length: as for `plain`.
    eos_id: as for `plain`.
    gamma: tokens drafted per call of the target; None for the library's defaults (20,
      and fewer if a drafted token's probability is below a threshold).
    mask: whether to pass the decoder mask; without the mask the draft's cache is wrong.
  """
  # The library reads the settings from the draft, not from the call of the target.
  if gamma is not None:
    draft.generation_config = GenerationConfig(
      num_assistant_tokens=gamma,
      num_assistant_tokens_schedule="constant",
      assistant_confidence_threshold=0.0,
    )
  options = {"assistant_model": draft}
  if mask:
    # The mask of the start token; the library extends the mask with the output.
    ones = torch.ones((1, 1), dtype=torch.long, device=target.device)
    options["decoder_attention_mask"] = ones
  settings = _settings(max_length, eos_id)
  return lambda ids: _generate(target, ids, settings, **options)


def _generate(network, ids, settings, **kwargs):
  ids = torch.tensor(ids[:, : np.count_nonzero(ids)], device=network.device)
  with torch.inference_mode():
    output = network.generate(ids, generation_config=settings, **kwargs)
  return output[:, 1:].cpu().numpy()  # Without the start token.


def _settings(max_length, eos_id):
  return GenerationConfig(
    do_sample=False,
    num_beams=1,
    use_cache=True,
    max_new_tokens=max_length,
    eos_token_id=eos_id,
    pad_token_id=PAD,
    decoder_start_token_id=START_TOKEN,
  )
