"""Self-speculation: a cheaper version of the target drafts for the target.

The methods train nothing and need no second network, no second cache and no second pass
over the input. The draft reads the target's cache, so all known tokens but the last
have the full target's keys and values. The draft's keys and values are not kept,
because the target overwrites them when it scores the block. The target is unchanged, so
every rule keeps its guarantee.

Sources: ML-SpecQD (arXiv 2503.13565) and QuantSpec (arXiv 2502.10424) for rounded
weights; Zhang et al. (Draft & Verify), arXiv 2309.08168, for skipped sublayers.

Shapes: B rows, V vocabulary.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Array, Float

from specdec_t5x.core.knobs import KnobError, invalid
from specdec_t5x.core.types import Cache, ExtendFn
from specdec_t5x.decoding.contracts import Batch, Context, Stops, Traits
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import Stepwise, gamma_knob
from specdec_t5x.network import rounded
from specdec_t5x.network.rounded import INPUT, LOGITS, Rounding

NAME = "quantized"


class OfTarget(Stepwise):
  """The base of drafters that run the target itself, from the target's cache.

  Attributes:
    skip: the names of the decoder's sublayers to leave out.
  """

  skip: Sequence[str]

  traits = Traits(stops=Stops.AT_LENGTH, resumes=True, reads_target=True, auto="always")

  def __post_init__(self):
    super().__post_init__()
    if isinstance(self.skip, str) or not all(isinstance(n, str) for n in self.skip):
      expected = "names of sublayers, as ('self_3', 'mlp_5')"
      raise invalid("skip", expected, self.skip)
    # A list from gin would make the drafter unhashable.
    object.__setattr__(self, "skip", tuple(self.skip))

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if the target lacks a sublayer of `skip`."""
    sublayers = getattr(target, "sublayers", ())
    unknown = [name for name in self.skip if name not in sublayers]
    if unknown:
      raise KnobError(
        "{skip}: the target has no sublayers {unknown}; the sublayers are {names}. "
        "`python -m lab layers`, in a clone, selects sublayers for a target.",
        unknown=unknown,
        names=", ".join(sublayers) or "none",
      )

  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Scores the last known token, the only token that the target's cache lacks."""
    cache = state.target_cache.at(state.lengths - 1)
    logits, _, cache = self.extend(context)(cache, state.last_tokens()[:, None])
    return logits[:, 0], cache


@dataclasses.dataclass(frozen=True)
class Quantized(OfTarget):
  """Drafts with the target itself, with rounded weights in the decoder.

  Attributes:
    bits: the bits of a weight, 8 or 4.
    group: the number of inputs that share a scale in each column; 0 is all inputs.
    whole: the parts with unrounded weights: sublayers, as 'mlp_5', and 'logits'.
    skip: the sublayers to leave out, as in `LayerSkip`.
    gamma: the most tokens of a draft.
  """

  # `Rounding` and `OfTarget` check these values.
  bits: int = 8
  group: int = 0
  whole: Sequence[str] = ()
  skip: Sequence[str] = ()
  gamma: int | None = gamma_knob()

  # A draft of 7 tokens and the previous token are a block of 8, the most rows that
  # `native/few_rows.cc` handles at once.
  default_gamma = 7
  # The draft is close to the target on any text, so alpha is higher than for other
  # drafts. Drafts of the target's size do not always pay.
  traits = dataclasses.replace(OfTarget.traits, prior_alpha=0.9)

  def __post_init__(self):
    super().__post_init__()
    rounding = Rounding(self.bits, self.group, self.whole)  # Checks the values.
    object.__setattr__(self, "whole", rounding.whole)

  def check(self, target: Any, batch: Batch | None = None) -> None:
    """Raises a ValueError if the target lacks a sublayer, or has no more bits."""
    super().check(target, batch)
    names = (*getattr(target, "sublayers", ()), LOGITS)
    unknown = [name for name in self.whole if name not in names]
    if unknown:
      raise KnobError(
        "{whole}: the target has no {unknown}; the names are {names}.",
        unknown=unknown,
        names=", ".join(names),
      )
    target_rounding = rounded.of_weights(target.config)
    if target_rounding and target_rounding.bits <= self.bits:
      raise KnobError(
        "{bits}={count} must be fewer than the bits of the target's {weights}={kind!r}"
        ", or the draft would equal the target. Take configs/drafters/quantized.gin "
        "with {bits}=4 and {group}=32, or Quantized(4, 32).",
        count=self.bits,
        kind=target.config.weights,
      )

  def derive(self, target: Any) -> Mapping[str, Rounding]:
    """Returns the rounding of the target's decoder, by name."""
    # The draft needs no skipped sublayers, and no weights that process the input: the
    # target has already read the input.
    unrounded = (*self.whole, *self.skip, INPUT)
    layout = rounded.layout_for(target.config)
    return {NAME: Rounding(self.bits, self.group, unrounded, layout)}

  def extend(self, context: Context) -> ExtendFn:
    """Returns the target in fewer bits."""
    target = context.target
    if NAME not in target.derived:
      raise ValueError(
        f"{NAME!r} is not among the parameters, {sorted(target.derived)}: the target's "
        "weights are rounded once, before decoding (`Drafter.derive`). Pass the "
        "rounded parameters."
      )
    return target.without(self.skip, target.derived[NAME])


@dataclasses.dataclass(frozen=True)
class LayerSkip(OfTarget):
  """Drafts with the target itself, without some of the decoder's sublayers.

  Attributes:
    skip: the sublayers to leave out, by name, as 'self_3' (self-attention), 'cross_0'
      (cross-attention) and 'mlp_5' (feed-forward), counted from 0. `python -m lab
      layers`, in a clone, chooses sublayers.
    gamma: the most tokens of a draft.
  """

  skip: Sequence[str]
  gamma: int | None = gamma_knob()

  def extend(self, context: Context) -> ExtendFn:
    """Returns the target without the sublayers of `skip`."""
    return context.target.without(self.skip)
