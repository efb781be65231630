"""Hugging Face transformers with our weights: plain and assisted greedy decoding.

What favours the peer is set: no padding and no mask of the input (our programs pad to
one shape), scaled-dot-product attention, GELU as one kernel, all cores, no gradients.

Two defects of transformers 5.23 with encoder-decoders are worked around from outside:

1. `generate` makes as many layers of decoder cache as the encoder has; `export` sets
   the number that it reads.
2. Without a `decoder_attention_mask`, the draft of assisted generation reads the whole
   output again at each call of the target, and adds it to a cache that has it already.
   So it drafts from a text that is not there (outputs are right all the same, for the
   target judges them), and its work grows with the square of the output. With a mask,
   of ones, it reads what is new (`assisted`), and a call of the target yields as many
   tokens as ours does: on a Multi30k pair at gamma 7, 3.25 and not 3.11.
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
  """Returns greedy decoding, one token a call.

  Args:
    network: from `export.to_torch`.
    max_length: most tokens of an output.
    eos_id: the token that ends one.
    copied: most tokens that are copied as a draft from the output ("prompt lookup").
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
    draft: from `export.to_torch`, for this program alone: it holds settings of it.
    max_length: as for `plain`.
    eos_id: as for `plain`.
    gamma: tokens drafted a call of the target; None for the library's own defaults (20,
      and fewer where the draft gives its token less probability than a threshold).
    mask: whether the call has the mask without which the draft's cache is wrong.
  """
  # The library reads these from the draft and ignores them in a call of the target.
  if gamma is not None:
    draft.generation_config = GenerationConfig(
      num_assistant_tokens=gamma,
      num_assistant_tokens_schedule="constant",
      assistant_confidence_threshold=0.0,
    )
  more = {"assistant_model": draft}
  if mask:
    # Of the start token; the library lets it grow with the output.
    ones = torch.ones((1, 1), dtype=torch.long, device=target.device)
    more["decoder_attention_mask"] = ones
  settings = _settings(max_length, eos_id)
  return lambda ids: _generate(target, ids, settings, **more)


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
