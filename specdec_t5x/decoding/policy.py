"""What decides how many tokens each row drafts next: the base class of `policies`.

A policy stands beside the drafter. It knows what a row's earlier iterations came to,
and no token of the draft that it decides about. So whatever it says, outputs keep the
guarantee of their rule (docs/math.md).

Shapes: B rows.
"""

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_t5x.core.checks import is_whole
from specdec_t5x.decoding.state import StepInfo


@dataclasses.dataclass(frozen=True)
class Policy:
  """A frozen dataclass of its knobs; its state, any pytree, is the decode's.

  Attributes:
    may_rest: whether `most` may be 0 in rows that may still grow. Where no row drafts,
      the target decodes a token by itself.
  """

  may_rest: ClassVar[bool] = False

  def check(self, lengths: tuple[int, ...]) -> None:
    """Raises a ValueError where the policy can't decide between these lengths.

    Args:
      lengths: of drafts that differ in what they cost, `Drafter.lengths`.
    """
    del lengths

  def pays(self, lengths: tuple[int, ...]) -> bool:
    """Returns whether any draft is worth a try: else decoding is plain throughout."""
    del lengths
    return True

  def start(self, rows: int) -> Any:
    """Returns what is known of each row before its first draft; by default nothing."""
    del rows

  def most(self, known: Any, rows: int, lengths: tuple[int, ...]) -> Int[Array, "B"]:
    """Returns how many tokens each row's next draft may have: by default the longest.

    Args:
      known: the policy's state.
      rows: B.
      lengths: as for `check`.
    """
    del known
    return jnp.full(rows, lengths[-1], jnp.int32)

  def within(
    self,
    known: Any,
    remaining: Int[Array, "B"],
    lengths: tuple[int, ...],
  ) -> Int[Array, "B"]:
    """As `most`, given how many tokens each row's output may take: no more than count.

    It may take none where it has ended, and one of them is the target's own.
    """
    most = self.most(known, remaining.shape[0], lengths)
    return jnp.minimum(most, jnp.maximum(remaining - 1, 0))

  def learn(self, known: Any, info: StepInfo) -> Any:
    """Returns the state after one more iteration of every row."""
    del info
    return known

  def refilled(self, fresh: Any, known: Any) -> Any:
    """Returns the state once rows that ended have other inputs: by default anew.

    Args:
      fresh: as `start` gave it in these rows, in the others as it was.
      known: as it was.
    """
    del known
    return fresh


@dataclasses.dataclass(frozen=True)
class Fixed(Policy):
  """Drafts the same number of tokens in every row and iteration.

  Attributes:
    length: how many; None is all that the drafter drafts. A program that times drafts
      of several lengths has it as an argument.
  """

  length: int | Int[Array, ""] | None = None

  def __post_init__(self):
    if not (self.length is None or is_whole(self.length, 0) or _is_array(self.length)):
      raise ValueError(
        f"Fixed.length must be a whole number of at least 0, got {self.length!r}. "
        "Leave it out for drafts as long as the drafter's."
      )

  @property
  def may_rest(self) -> bool:
    """Where a length is given: it may be 0."""
    return self.length is not None

  def most(self, known: Any, rows: int, lengths: tuple[int, ...]) -> Int[Array, "B"]:
    """The length, at most the longest."""
    length = lengths[-1] if self.length is None else self.length
    return jnp.full(rows, jnp.minimum(length, lengths[-1]), jnp.int32)


def _is_array(value: Any) -> bool:
  return hasattr(value, "dtype") and value.ndim == 0
