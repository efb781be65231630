"""Policies: how many tokens each row drafts next.

A policy decides by the outcome of a row's earlier iterations, and knows no token of the
next draft. So every policy keeps the guarantee of the rule (docs/math.md).

Shapes: B rows.
"""

import abc
import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Int

from specdec_t5x.core.knobs import is_whole
from specdec_t5x.decoding.state import StepInfo


class Policy(abc.ABC):
  """The base class of policies: frozen dataclasses of their knobs.

  The state of a policy is any pytree; the loop only carries the state.

  Attributes:
    may_rest: whether `lengths` may be 0 in rows that are still decoded. If no row
      drafts, the target decodes a token by itself.
  """

  may_rest: ClassVar[bool] = False

  def start(self, rows: int) -> Any:
    """Returns the state before the first draft of each row."""
    del rows

  @abc.abstractmethod
  def lengths(
    self, policy_state: Any, rows: int, choices: tuple[int, ...]
  ) -> Int[Array, "B"]:
    """Returns how many tokens each row drafts next.

    Args:
      policy_state: the policy's state.
      rows: B.
      choices: draft lengths of different cost, `Drafter.lengths`.
    """

  def update(self, policy_state: Any, info: StepInfo) -> Any:
    """Returns the state after one more iteration of every row."""
    del info
    return policy_state

  def check(self, choices: tuple[int, ...]) -> None:
    """Raises a ValueError if the policy can't decide between these draft lengths."""
    del choices

  def pays(self, choices: tuple[int, ...]) -> bool:
    """Returns whether drafting is worth a try; otherwise a decode is plain."""
    del choices
    return True

  def refill(self, fresh: Any, policy_state: Any) -> Any:
    """Returns the state after ended rows have taken new inputs.

    Args:
      fresh: the state with the refilled rows as `start` makes them.
      policy_state: the state before.
    """
    del policy_state
    return fresh


@dataclasses.dataclass(frozen=True)
class Fixed(Policy):
  """Drafts the same number of tokens in every row and iteration.

  Attributes:
    length: the number of tokens; None is the drafter's longest draft. Programs that
      time drafts of several lengths pass a traced integer.
  """

  length: int | Int[Array, ""] | None = None

  def __post_init__(self):
    if not (self.length is None or is_whole(self.length, 0) or _is_array(self.length)):
      raise ValueError(
        f"Fixed.length must be a whole number of at least 0, got {self.length!r}. "
        "Leave length out for the drafter's own draft length."
      )

  @property
  def may_rest(self) -> bool:
    """Whether a length is given, which may be 0."""
    return self.length is not None

  def lengths(
    self, policy_state: Any, rows: int, choices: tuple[int, ...]
  ) -> Int[Array, "B"]:
    """Returns the length in each row, at most the drafter's longest."""
    length = choices[-1] if self.length is None else self.length
    return jnp.full(rows, jnp.minimum(length, choices[-1]), jnp.int32)


def _is_array(value: Any) -> bool:
  return hasattr(value, "dtype") and value.ndim == 0
