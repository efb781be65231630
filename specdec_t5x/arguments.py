"""Checks of the arguments of Python's entry points."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.data.hints import about_hub


def inputs(values: Any, vocab_size: int) -> list[str] | list[list[int]]:
  """Returns the inputs as a list: texts, or lists of token ids.

  Args:
    values: the inputs.
    vocab_size: the target's vocabulary size.

  Raises:
    ValueError: if an input is neither text nor token ids.
  """
  if not isinstance(values, Iterable) or isinstance(values, str | bytes | bytearray):
    return texts(values)
  examples = list(values)
  if not any(isinstance(example, Sequence | np.ndarray) for example in examples):
    return texts(examples)
  if any(isinstance(example, str | bytes | bytearray) for example in examples):
    return texts(examples)
  return [token_ids(ids, number, vocab_size) for number, ids in enumerate(examples)]


def token_ids(ids: Any, number: int, vocab_size: int) -> list[int]:
  """Returns an input of token ids as a list.

  Args:
    ids: the input.
    number: the input's number, for messages.
    vocab_size: the target's vocabulary size.

  Raises:
    ValueError: if an id is not a whole number from 0 to `vocab_size` - 1.
  """
  is_list = isinstance(ids, Sequence | np.ndarray)
  if not is_list or not all(is_whole(token, 0) and token < vocab_size for token in ids):
    raise ValueError(
      f"inputs[{number}] must be a list of token ids from 0 to {vocab_size - 1}, got "
      f"{_shown(ids)}. Give token ids for every input, or a text for every input."
    )
  return [int(token) for token in ids]


def texts(inputs: Any) -> list[str]:
  """Returns the inputs as a list.

  Raises:
    ValueError: if the inputs are not a list of texts; the message has the number.
  """
  if isinstance(inputs, str | bytes | bytearray):
    raise ValueError(
      f"inputs must be a list of texts, got a single {type(inputs).__name__}. Wrap the "
      "text in [...]."
    )
  if not isinstance(inputs, Iterable):
    raise ValueError(f"inputs must be a list of texts, got {inputs!r}.")
  return [text(value, f"inputs[{number}]") for number, value in enumerate(inputs)]


def text(value: Any, name: str) -> str:
  """Returns a text after a check.

  Args:
    value: the text.
    name: the text's name, for messages.

  Raises:
    ValueError: if the value is no str, or has no UTF-8 encoding.
  """
  if not isinstance(value, str):
    fix = " Decode the bytes, as in value.decode()." if isinstance(value, bytes) else ""
    raise ValueError(f"{name} must be a text (str), got {_shown(value)}.{fix}")
  try:
    value.encode()
  except UnicodeEncodeError as error:
    raise ValueError(
      f"{name} must be Unicode, got the lone surrogate {value[error.start]!r} at "
      f"character {error.start}. Read the text with the right encoding, or remove the "
      "character."
    ) from error
  return value


def count(value: Any, name: str) -> int:
  """Returns a count of at least 1 as an int.

  Raises:
    ValueError: if the value is not a whole number of at least 1.
  """
  if not is_whole(value, 1):
    raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")
  return int(value)


def seed_of(value: Any) -> int:
  """Returns a seed as an int of at most 32 bits, as JAX drops further bits.

  Raises:
    ValueError: if the value is not a whole number from 0 to 2^32 - 1.
  """
  if not is_whole(value, 0) or value >= 2**32:
    raise ValueError(f"seed must be a whole number from 0 to 2^32 - 1, got {value!r}.")
  return int(value)


def check_sampling(sampling: Any) -> None:
  """Raises a ValueError if `sampling` is no `Sampling`."""
  if isinstance(sampling, Sampling):
    return
  is_number = isinstance(sampling, float | int) and not isinstance(sampling, bool)
  example = f"Sampling(temperature={sampling if is_number else 1.0})"
  raise ValueError(
    f"sampling must be a Sampling, got {_shown(sampling)}. Pass {example}, or leave "
    "sampling out for greedy decoding."
  )


def path_of(value: Any, name: str) -> str:
  """Returns the path of a file or folder as a str.

  Args:
    value: the path.
    name: the argument's name, for messages.

  Raises:
    ValueError: if the value is no path, or the path does not exist.
  """
  is_path = isinstance(value, str | os.PathLike)
  if not is_path or not os.path.exists(value):
    raise ValueError(
      f"{name}={_shown(value)} is not a file, or a folder with a vocabulary. Expected "
      "the SentencePiece model of target and "
      f"draft.{about_hub(os.fspath(value)) if is_path else ''}"
    )
  return os.fspath(value)


def _shown(value: Any) -> str:
  """Returns a value's repr for a message, cut if long; a path is shown as a string."""
  if isinstance(value, os.PathLike):
    return repr(os.fspath(value))
  shown = repr(value)
  return shown if len(shown) <= 80 else f"{shown[:77]}..."
