"""One decode, iteration by iteration: which tokens were accepted, which were not.

The trace of Leviathan et al., ICML 2023, figure 1. `trace.render` draws it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from specdec_t5x.trace.recording import Turn

_ORDER = {"accepted": 0, "rejected": 1, "discarded": 2}


@dataclasses.dataclass(frozen=True)
class Iteration:
  """What became of one draft, in pieces of the vocabulary.

  Attributes:
    accepted: drafted tokens that entered the output.
    rejected: the first drafted token that the target did not let pass, if any.
    discarded: drafted tokens after the rejected one.
    emitted: the target's own token after the accepted ones; None where the draft
      itself ended the sequence.
  """

  accepted: tuple[str, ...]
  rejected: str | None
  discarded: tuple[str, ...]
  emitted: str | None

  @classmethod
  def of(
    cls, drafted: Sequence[str], gained: Sequence[str], num_accepted: int
  ) -> "Iteration":
    """Returns the iteration that a draft and the output's gain amount to.

    Args:
      drafted: the drafted tokens that counted.
      gained: what the output gained.
      num_accepted: how many of the drafted tokens stand.

    >>> Iteration.of(["ein", "Hund", "."], ["ein", "Mann"], 1)
    Iteration(accepted=('ein',), rejected='Hund', discarded=('.',), emitted='Mann')
    """
    rest = drafted[num_accepted:]
    return cls(
      accepted=tuple(drafted[:num_accepted]),
      rejected=rest[0] if rest else None,
      discarded=tuple(rest[1:]),
      emitted=gained[num_accepted] if len(gained) > num_accepted else None,
    )

  @classmethod
  def of_turn(cls, turn: Turn) -> "Iteration":
    """Returns a recorded iteration; of a tree, its accepted path before the rest."""
    stand = sorted(turn.drafted, key=lambda token: _ORDER[token.kind])
    drafted = [token.piece for token in stand]
    accepted = sum(token.kind == "accepted" for token in turn.drafted)
    return cls.of(drafted, turn.output, accepted)

  @property
  def kind(self) -> Literal["recovered", "bonus"] | None:
    """What the emitted token is; None where there is none."""
    if self.emitted is None:
      return None
    return "bonus" if self.rejected is None else "recovered"

  @property
  def output(self) -> tuple[str, ...]:
    """What the output gained."""
    return self.accepted + (() if self.emitted is None else (self.emitted,))
