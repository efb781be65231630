"""The base of self-speculation: drafters that are the target itself, made cheaper.

No second network, cache or reading of the input: drafting goes on from the target's own
cache, so all known tokens but the last have the keys and values that the whole target
gave them. What the draft writes is not kept: the target writes its own keys and values
when it scores the block.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Array, Float

from specdec_t5x.core.types import Cache
from specdec_t5x.decoding.context import Context
from specdec_t5x.decoding.state import DecodeState
from specdec_t5x.drafters.stepwise import Stepwise


class OfTarget(Stepwise):
  """What drafters that are the target itself have in common: they go on from its cache.

  Attributes:
    skip: the sublayers of its decoder that are left out.
  """

  skip: Sequence[str]

  reads_target = True

  def __post_init__(self):
    super().__post_init__()
    if isinstance(self.skip, str) or not all(isinstance(n, str) for n in self.skip):
      raise ValueError(
        f"SKIP must be names of sublayers, as ('self_3', 'mlp_5'), got {self.skip!r}."
      )
    # A list, as gin gives, would make the drafter unhashable.
    object.__setattr__(self, "skip", tuple(self.skip))

  def check(self, target: Any) -> None:
    """Raises a ValueError where the target has no such sublayers."""
    known = getattr(target, "sublayers", ())
    unknown = [name for name in self.skip if name not in known]
    if unknown:
      names = ", ".join(known) or "none"
      raise ValueError(
        f"SKIP: the target has no sublayers {unknown}; it has {names}. "
        "`python -m lab layers`, in a clone, chooses among them for a target."
      )

  def read(
    self, context: Context, state: DecodeState
  ) -> tuple[Float[Array, "B V"], Cache]:
    """Reads the last known token, which the target's cache lacks."""
    cache = state.target_cache.at(state.lengths - 1)
    logits, _, cache = self.extend(context)(cache, state.last_tokens()[:, None])
    return logits[:, 0], cache
