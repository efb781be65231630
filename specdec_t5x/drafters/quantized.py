"""Self-speculation: the target with weights in 8 or 4 bits drafts for the target.

The method trains nothing and loads nothing else. The decoder's weights are rounded
once, after the target's checkpoint is restored. The draft reads the target's cache, as
in `layer_skip`. The target is unchanged, so every rule keeps its guarantee. Sources:
ML-SpecQD (arXiv 2503.13565), QuantSpec (arXiv 2502.10424).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from specdec_t5x.core.knobs import knob
from specdec_t5x.core.types import ExtendFn
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.drafters.draft_model import gamma_knob
from specdec_t5x.drafters.of_target import OfTarget
from specdec_t5x.network import rounded
from specdec_t5x.network.rounded import INPUT, Rounding

NAME = "quantized"
# A draft of 7 tokens and the previous token are a block of 8, the most rows that
# `native/few_rows.cc` handles at once.
LONGEST = 7


@dataclasses.dataclass(frozen=True)
class Quantized(OfTarget):
  """Drafts with the target itself, with rounded weights in the decoder.

  Attributes:
    bits: the bits of a weight, 8 or 4.
    group: the number of inputs that share a scale in each column; 0 is all inputs.
    whole: the parts with unrounded weights: sublayers, as 'mlp_5', and 'logits'.
    skip: the sublayers to leave out, as in `layer_skip.LayerSkip`.
    gamma: the most tokens of a draft.
  """

  # `Rounding` and `OfTarget` check these values.
  bits: int = knob(8, None, "bits of a weight, 8 or 4", "BITS")
  group: int = knob(0, None, "inputs that share a scale; 0 is all", "GROUP")
  whole: Sequence[str] = knob((), None, "parts with unrounded weights", "WHOLE")
  skip: Sequence[str] = knob((), None, "sublayers to leave out", "SKIP")
  gamma: int = gamma_knob(LONGEST)

  # The draft is close to the target on any text, so alpha is higher than for other
  # drafts.
  prior_alpha = 0.9

  def __post_init__(self):
    super().__post_init__()
    object.__setattr__(self, "whole", self.rounding.whole)

  def default_policy(self, is_named: bool) -> str:
    """Returns 'auto', as drafts of the target's size do not always pay."""
    del is_named
    return "auto"

  @property
  def rounding(self) -> Rounding:
    """The rounding of the weights."""
    return Rounding(self.bits, self.group, self.whole)

  def check(self, target: Any) -> None:
    """Raises a ValueError if the target lacks a sublayer, or has no more bits."""
    super().check(target)
    self.rounding.check(getattr(target, "sublayers", ()))
    target_rounding = rounded.of_weights(target.config)
    if target_rounding and target_rounding.bits <= self.bits:
      raise ValueError(
        f"BITS={self.bits} must be fewer than the bits of the target's "
        f"WEIGHTS={target.config.weights!r}, or the draft would equal the target. Take "
        "configs/drafters/quantized.gin with BITS=4 and GROUP=32, or Quantized(4, 32)."
      )

  def derived(self, target: Any) -> Mapping[str, Rounding]:
    """Returns the rounding of the target's decoder, by name."""
    # The draft needs no skipped sublayers, and no weights that process the input: the
    # target has already read the input.
    unrounded = (*self.rounding.whole, *self.skip, INPUT)
    packed = rounded.are_packed(target.config)
    paired = rounded.are_paired(target.config)
    return {NAME: Rounding(self.bits, self.group, unrounded, packed, paired)}

  def extend(self, context: Context) -> ExtendFn:
    """Returns the target in fewer bits."""
    target = context.target
    if NAME not in target.derived:
      raise ValueError(
        f"{NAME!r} is not among the parameters, {sorted(target.derived)}: the target's "
        "weights are rounded once, before decoding (`derived`). Pass the rounded "
        "parameters."
      )
    return target.without(self.skip, target.derived[NAME])
