"""Groups of inputs of similar length, padded to a common width per group.

Without groups a single long input would set the width of all inputs. Each shape needs
compilation, so there are few widths (powers of two that spare much padding) and few
batch sizes (`rows_for`).
"""

import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specdec_t5x.network.inputs import PADDING

# Widths are multiples of LENGTH_STEP; those of the longest inputs are powers of two up
# to _COARSE, and beyond multiples of _COARSE.
LENGTH_STEP = 16
_COARSE = 64
# The least number of padding tokens that a further width must spare.
WORTH = 16_384


@dataclasses.dataclass(frozen=True)
class Group:
  """Inputs with a common width.

  Attributes:
    width: the number of tokens of a row.
    numbers: the numbers of the inputs, ascending.
  """

  width: int
  numbers: tuple[int, ...]

  def batches(
    self, ids: Sequence[Sequence[int]], rows: int
  ) -> Iterator[tuple[list[int], Int[Array, "B E"]]]:
    """Yields each batch with the numbers of the inputs in the batch's first rows.

    Args:
      ids: the tokens of all inputs.
      rows: B. The free rows of a batch repeat the batch's first input.
    """
    for first in range(0, len(self.numbers), rows):
      numbers = list(self.numbers[first : first + rows])
      batch = np.full((rows, self.width), PADDING, np.int32)
      for row, number in zip(batch, numbers, strict=False):
        row[: len(ids[number])] = ids[number]
      batch[len(numbers) :] = batch[0]
      yield numbers, jnp.asarray(batch)


def room_of(tokens: Sequence[int]) -> int:
  """Returns the least width of a row for an input.

  An input that ends with id 0 needs a padding token at the end, as the id would
  otherwise be read as padding.
  """
  return len(tokens) + (len(tokens) > 0 and tokens[-1] == 0)


def widest(ids: Sequence[Sequence[int]]) -> int:
  """Returns the width of rows that hold any of these inputs."""
  longest = max(map(room_of, ids), default=0)
  return -(-longest // LENGTH_STEP) * LENGTH_STEP


def grouped(lengths: Sequence[int]) -> list[Group]:
  """Returns the groups of inputs of the given lengths, the widest group first.

  Narrower inputs join the wider group, unless a group of their own spares at least
  `WORTH` padding tokens.
  """
  longest = max(lengths, default=0)
  steps = -(-longest // _COARSE) * _COARSE
  widest = steps if longest > _COARSE else _power(longest) if longest else 0
  widths = [min(_power(length), widest) for length in lengths]
  chosen = {}
  for width in sorted(set(widths), reverse=True):
    wider = min(chosen.values(), default=None)
    count = sum(other <= width for other in widths)
    is_worth = wider is None or count * (wider - width) >= WORTH
    chosen[width] = width if is_worth else wider
  members = {width: [] for width in chosen.values()}
  for number, width in enumerate(widths):
    members[chosen[width]].append(number)
  return [Group(width, tuple(numbers)) for width, numbers in members.items()]


def rows_for(count: int, batch_size: int) -> int:
  """Returns the rows of a batch for a number of inputs, one of few numbers.

  The numbers are 1 to 4, even numbers up to 16, multiples of 4 up to 32, of 8 up to 64,
  and so on, and `batch_size`. Each number is a program to compile, and a row without an
  input costs time (10 rows took 1.08 times as long as 9), so up to 16 rows have at most
  one.

  >>> [rows_for(count, 30) for count in (0, 1, 3, 5, 7, 9, 17, 29, 50)]
  [1, 1, 3, 6, 8, 10, 20, 30, 30]
  """
  count = max(count, 1)
  step = max(2, (1 << (count - 1).bit_length()) // 8) if count > 4 else 1
  return min(-(-count // step) * step, batch_size)


def _power(length: int) -> int:
  """Returns the least width for a length among LENGTH_STEP times powers of two."""
  steps = -(-max(length, 1) // LENGTH_STEP)
  return LENGTH_STEP << (steps - 1).bit_length()
