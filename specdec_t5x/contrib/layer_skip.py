"""Self-speculation: the target without some sublayers drafts for the target.

Source: Zhang et al. (Draft & Verify), arXiv 2309.08168.
"""

import dataclasses
from collections.abc import Sequence

from specdec_t5x.core.knobs import knob
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.drafters.draft_model import gamma_knob
from specdec_t5x.drafters.of_target import OfTarget


@dataclasses.dataclass(frozen=True)
class LayerSkip(OfTarget):
  """Drafts with the target itself, without some of the decoder's sublayers.

  Attributes:
    skip: the sublayers to leave out, by name, as 'self_3' (self-attention), 'cross_0'
      (cross-attention) and 'mlp_5' (feed-forward), counted from 0. `python -m lab
      layers`, in a clone, chooses sublayers.
    gamma: the most tokens of a draft.
  """

  skip: Sequence[str] = knob(
    dataclasses.MISSING, None, "sublayers to leave out", "SKIP"
  )
  gamma: int = gamma_knob()

  def default_policy(self, is_named: bool) -> str:
    """Returns 'auto', as drafts of the target's size do not always pay."""
    del is_named
    return "auto"

  def extend(self, context: Context) -> ExtendFn:
    """Returns the target without the sublayers of `skip`."""
    return context.target.without(self.skip)
