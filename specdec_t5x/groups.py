"""Groups of inputs of similar length: inputs of a group are padded to one width.

One long input would otherwise set the width of all. Each width is compiled, so there
are few: powers of two, those alone that spare much padding.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x.network.inputs import PADDING

# Widths are multiples of this, so that few shapes are compiled.
LENGTH_STEP = 16
# Padded tokens that another width spares before it is worth being compiled.
_WORTH = 16_384


@dataclasses.dataclass(frozen=True)
class Group:
  """Inputs that are padded to one width.

  Attributes:
    width: tokens of a row.
    numbers: which inputs, in their order.
  """

  width: int
  numbers: tuple[int, ...]

  def batches(
    self, ids: Sequence[Sequence[int]], rows: int
  ) -> Iterator[tuple[list[int], Int[Array, "B E"]]]:
    """Yields the numbers of some inputs, and a batch whose first rows they are.

    Args:
      ids: the tokens of all inputs.
      rows: B. A batch that is not full repeats its first input.
    """
    for first in range(0, len(self.numbers), rows):
      numbers = list(self.numbers[first : first + rows])
      batch = np.full((rows, self.width), PADDING, np.int32)
      for row, number in zip(batch, numbers, strict=False):
        row[: len(ids[number])] = ids[number]
      batch[len(numbers) :] = batch[0]
      yield numbers, jnp.asarray(batch)


def room_of(tokens: Sequence[int]) -> int:
  """Returns how wide a row must be for an input.

  An input that ends with id 0 needs padding behind it, or that id would be read as
  padding.
  """
  return len(tokens) + (len(tokens) > 0 and tokens[-1] == 0)


def widest(ids: Sequence[Sequence[int]]) -> int:
  """Returns the width of rows that hold any of these inputs."""
  longest = max(map(room_of, ids), default=0)
  return -(-longest // LENGTH_STEP) * LENGTH_STEP


def grouped(lengths: Sequence[int]) -> list[Group]:
  """Returns the groups of inputs of these lengths, the widest first.

  Inputs of a narrower width join the wider group unless their padding to it, in tokens,
  costs more than a program.
  """
  widest = -(-max(lengths, default=0) // LENGTH_STEP) * LENGTH_STEP
  widths = [min(_power(length), widest) for length in lengths]
  chosen = {}
  for width in sorted(set(widths), reverse=True):
    wider = min(chosen.values(), default=None)
    count = sum(each <= width for each in widths)
    is_worth = wider is None or count * (wider - width) >= _WORTH
    chosen[width] = width if is_worth else wider
  numbers = {width: [] for width in chosen.values()}
  for number, width in enumerate(widths):
    numbers[chosen[width]].append(number)
  return [Group(width, tuple(some)) for width, some in numbers.items()]


def _power(length: int) -> int:
  """Returns the first power of two times the step that a length fits in."""
  steps = -(-max(length, 1) // LENGTH_STEP)
  return LENGTH_STEP << (steps - 1).bit_length()
