"""Checks of what Python's entry points are called with."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specdec_t5x.core.checks import is_whole
from specdec_t5x.core.distributions import Sampling
from specdec_t5x.data.hints import how_to_make


def inputs(given: Any, vocab_size: int) -> list[str] | list[list[int]]:
  """Returns the inputs as a list: texts, or lists of token ids.

  Args:
    given: the inputs.
    vocab_size: of the target.

  Raises:
    ValueError: where the inputs are neither; the message has the input's number.
  """
  if not isinstance(given, Iterable) or isinstance(given, str | bytes | bytearray):
    return texts(given)
  listed = list(given)
  if not any(isinstance(each, Sequence | np.ndarray) for each in listed):
    return texts(listed)
  if any(isinstance(each, str | bytes | bytearray) for each in listed):
    return texts(listed)
  return [token_ids(each, number, vocab_size) for number, each in enumerate(listed)]


def token_ids(ids: Any, number: int, vocab_size: int) -> list[int]:
  """Returns an input of token ids as a list.

  Args:
    ids: the input.
    number: of the input, for messages.
    vocab_size: of the target.

  Raises:
    ValueError: where an id is no whole number below `vocab_size`.
  """
  is_list = isinstance(ids, Sequence | np.ndarray)
  if not is_list or not all(is_whole(token, 0) and token < vocab_size for token in ids):
    raise ValueError(
      f"inputs[{number}] must be a list of token ids from 0 to {vocab_size - 1}, as "
      f"others are, got {_shown(ids)}."
    )
  return [int(token) for token in ids]


def texts(inputs: Any) -> list[str]:
  """Returns the inputs as a list.

  Raises:
    ValueError: where they are no list of texts; the message has the input's number.
  """
  if isinstance(inputs, str | bytes | bytearray):
    raise ValueError(
      f"inputs must be a list of texts, got one {type(inputs).__name__}. Wrap it in "
      "[...]."
    )
  if not isinstance(inputs, Iterable):
    raise ValueError(f"inputs must be a list of texts, got {inputs!r}.")
  return [text(value, f"inputs[{number}]") for number, value in enumerate(inputs)]


def text(value: Any, name: str) -> str:
  """Returns a text.

  Args:
    value: the text.
    name: of the text, for messages.

  Raises:
    ValueError: where the value is no str, or can't be written in UTF-8.
  """
  if not isinstance(value, str):
    fix = " Decode them, as in value.decode()." if isinstance(value, bytes) else ""
    raise ValueError(f"{name} must be a text (str), got {_shown(value)}.{fix}")
  try:
    value.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f"{name} must be Unicode, got the lone surrogate {value[error.start]!r} at "
      f"character {error.start}. Read the text with the right encoding, or drop the "
      "character."
    ) from error
  return value


def count(value: Any, name: str) -> int:
  """Returns a count of at least 1 as an int.

  Raises:
    ValueError: where the value is none.
  """
  if not is_whole(value, 1):
    raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
  return int(value)


def seed_of(value: Any) -> int:
  """Returns a seed as an int.

  Raises:
    ValueError: where the value is none. JAX drops the bits beyond 32.
  """
  if not is_whole(value, 0) or value >= 2**32:
    raise ValueError(f"seed must be a whole number from 0 to 2^32 - 1, got {value!r}.")
  return int(value)


def check_sampling(sampling: Any) -> None:
  """Raises a ValueError where `sampling` is no `Sampling`."""
  if isinstance(sampling, Sampling):
    return
  is_number = isinstance(sampling, float | int) and not isinstance(sampling, bool)
  example = f"Sampling(temperature={sampling if is_number else 1.0})"
  raise ValueError(
    f"sampling must be a Sampling, got {_shown(sampling)}. Pass {example}, or leave it "
    "out for greedy decoding."
  )


def path_of(value: Any, name: str) -> str:
  """Returns the path of a file or folder as a str.

  Args:
    value: the path.
    name: of the argument.

  Raises:
    ValueError: where the value is no path, or nothing is there.
  """
  is_path = isinstance(value, str | os.PathLike)
  if not is_path or not os.path.exists(value):
    raise ValueError(
      f"{name}={_shown(value)} is not a file, or a folder that has one. Expected "
      "the SentencePiece model that target and draft were trained with."
      f"{how_to_make(os.fspath(value)) if is_path else ''}"
    )
  return os.fspath(value)


def _shown(value: Any) -> str:
  """Returns a value for a message, a path as its string and a long one cut."""
  if isinstance(value, os.PathLike):
    return repr(os.fspath(value))
  shown = repr(value)
  return shown if len(shown) <= 80 else f"{shown[:77]}..."
