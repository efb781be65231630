"""The base of self-speculation: a cheaper version of the target drafts.

Self-speculation needs no second network, no second cache and no second pass over the
input. The draft reads the target's cache, so all known tokens but the last have the
full target's keys and values. The draft's keys and values are not kept, because the
target overwrites them when it scores the block.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Array, Float

from specdec_t5x.core.types import Cache
from specdec_t5x.decoding.drafter import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.draft_model import Stepwise


class OfTarget(Stepwise):
  """The base of drafters that run the target itself, from the target's cache.

  Attributes:
    skip: the names of the decoder's sublayers to leave out.
  """

  skip: Sequence[str]

  reads_target = True

  def __post_init__(self):
    super().__post_init__()
    if isinstance(self.skip, str) or not all(isinstance(n, str) for n in self.skip):
      raise ValueError(
        f"SKIP must be names of sublayers, as ('self_3', 'mlp_5'), got {self.skip!r}."
      )
    # A list from gin would make the drafter unhashable.
    object.__setattr__(self, "skip", tuple(self.skip))

  def check(self, target: Any) -> None:
    """Raises a ValueError if the target lacks a sublayer of `skip`."""
    sublayers = getattr(target, "sublayers", ())
    unknown = [name for name in self.skip if name not in sublayers]
    if unknown:
      names = ", ".join(sublayers) or "none"
      raise ValueError(
        f"SKIP: the target has no sublayers {unknown}; the sublayers are {names}. "
        "`python -m lab layers`, in a clone, selects sublayers for a target."
      )

  def first_logits(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Scores the last known token, the only token that the target's cache lacks."""
    cache = state.target_cache.at(state.lengths - 1)
    logits, _, cache = self.extend(context)(cache, state.last_tokens()[:, None])
    return logits[:, 0], cache
