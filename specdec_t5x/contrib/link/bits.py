"""Whole numbers as bits, one behind the other."""

import dataclasses
from collections.abc import Sequence

import numpy as np

# The widest number that a message has.
_WIDEST = 32


def packed(fields: Sequence[tuple[np.ndarray, int]]) -> bytes:
  """Returns arrays of whole numbers as bytes, the last one filled up with zeros.

  Args:
    fields: arrays, each with the bits that one of its numbers takes.
  """
  bits = [_bits(numbers, width) for numbers, width in fields]
  return np.packbits(np.concatenate([np.zeros(0, np.uint8), *bits])).tobytes()


def _bits(numbers, width):
  flat = np.ascontiguousarray(np.asarray(numbers).ravel(), ">u4")
  every = np.unpackbits(flat.view(np.uint8)).reshape(-1, _WIDEST)
  return every[:, _WIDEST - width :].ravel()


@dataclasses.dataclass
class Reader:
  """Reads what `packed` wrote, and never beyond its end.

  Attributes:
    data: the bytes.
    at: the next bit.
  """

  data: bytes
  at: int = 0

  def take(self, shape: tuple[int, ...], width: int) -> np.ndarray:
    """Returns the next numbers [*shape].

    Raises:
      ValueError: where there are not as many.
    """
    end = self.at + int(np.prod(shape, dtype=np.int64)) * width
    if end > 8 * len(self.data):
      raise ValueError(f"Expected {end} bits, got {8 * len(self.data)}.")
    some = np.frombuffer(self.data, np.uint8)[self.at // 8 : -(-end // 8)]
    bits = np.unpackbits(some)[self.at % 8 :][: end - self.at].reshape(-1, width)
    self.at = end
    padded = np.zeros((bits.shape[0], _WIDEST), np.uint8)
    padded[:, _WIDEST - width :] = bits
    return np.packbits(padded).view(">u4").astype(np.int64).reshape(shape)

  def end(self) -> None:
    """Raises a ValueError where more follows than the zeros of the last byte."""
    if -(-self.at // 8) != len(self.data):
      raise ValueError(f"Expected {self.at} bits, got {8 * len(self.data)}.")
