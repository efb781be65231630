"""Self-speculation: the target drafts for itself, its weights in 8 or 4 bits.

Nothing is trained, and nothing else loaded: the decoder's weights are rounded once, of
whatever was restored. Drafting goes on from the target's own cache, as in `layer_skip`;
the target itself stays as it is, so every rule keeps its guarantee. Sources: ML-SpecQD
(arXiv 2503.13565), QuantSpec (arXiv 2502.10424).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.context import Context
from specdec_t5x.drafters.of_target import OfTarget
from specdec_t5x.drafters.stepwise import gamma_knob
from specdec_t5x.network import rounded
from specdec_t5x.network.rounded import INPUT, Rounding

NAME = "quantized"
# With the token before them a block of 8, the most that `native/few_rows.cc` calls few.
LONGEST = 7


@dataclasses.dataclass(frozen=True)
class Quantized(OfTarget):
  """Drafts by the target itself, its decoder's weights rounded.

  Attributes:
    bits: of a weight, 8 or 4.
    group: inputs that share a scale in each column; 0 is all.
    whole: what is not rounded: names of sublayers, as 'mlp_5', and 'logits'.
    skip: sublayers that are left out, as in `layer_skip.LayerSkip`.
    gamma: most tokens a draft.
  """

  bits: int = 8
  group: int = 0
  whole: Sequence[str] = ()
  skip: Sequence[str] = ()
  gamma: int = gamma_knob(LONGEST)

  # Nearly the target, of whatever text: more is accepted than of other drafts.
  prior_alpha = 0.9

  def __post_init__(self):
    super().__post_init__()
    object.__setattr__(self, "whole", self.rounding.whole)

  def default_policy(self, is_named: bool) -> str:
    """Returns 'auto': drafts of the target's own size do not always pay."""
    del is_named
    return "auto"

  @property
  def rounding(self) -> Rounding:
    """How the weights are rounded."""
    return Rounding(self.bits, self.group, self.whole)

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such sublayers, or no more bits."""
    super().check(target)
    self.rounding.check(getattr(target, "sublayers", ()))
    own = rounded.of_weights(target.config)
    if own and own.bits <= self.bits:
      raise ValueError(
        f"BITS={self.bits} must be fewer than the target's, whose WEIGHTS are "
        f"{target.config.weights!r}: the draft would be the target. Take "
        "configs/drafters/quantized.gin with BITS=4 and GROUP=32, or Quantized(4, 32)."
      )

  def derived(self, target: Any) -> Mapping[str, Rounding]:
    """Returns the target's decoder in fewer bits, by its name."""
    # What is left out need not be there, and what is of the input has been read.
    whole = (*self.rounding.whole, *self.skip, INPUT)
    packed = rounded.are_packed(target.config)
    paired = rounded.are_paired(target.config)
    return {NAME: Rounding(self.bits, self.group, whole, packed, paired)}

  def extend(self, context: Context) -> ExtendFn:
    """Returns the target in fewer bits."""
    target = context.target
    if NAME not in target.derived:
      raise ValueError(
        f"{NAME!r} is not among the parameters, {sorted(target.derived)}: the target's "
        "weights are rounded once, before they are decoded with (`derived`)."
      )
    return target.without(self.skip, target.derived[NAME])
