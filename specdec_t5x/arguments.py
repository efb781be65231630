"""Checks of the arguments of Python's entry points."""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specdec_t5x.core.distributions import Sampling
from specdec_t5x.core.knobs import is_whole
from specdec_t5x.prepared import Model
from specdec_t5x.ways import NAMED


def inputs(values: Any, vocab_size: int, pads: Collection[int]) -> list[Any]:
  """Returns the inputs as a list: texts, or lists of token ids.

  Args:
    values: the inputs, in a list or in an array of any library.
    vocab_size: the target's vocabulary size.
    pads: the ids of padding.

  Raises:
    ValueError: if an input is neither text nor token ids.
  """
  check_listed(values, "inputs")
  _refuse_mask(values, "inputs")
  # The elements of other libraries' arrays are slow to read one by one.
  examples = list(np.asarray(values) if _is_array(values) else values)
  if examples and all(is_whole(x, 0) for x in examples):
    raise ValueError(
      "inputs must be a list with the token ids of each input, got the token ids of a "
      f"single input: {_shown(examples)}. Wrap the ids in [...]."
    )
  has_texts = any(isinstance(x, str | bytes | bytearray) for x in examples)
  has_ids = any(isinstance(x, Sequence) or _is_array(x) for x in examples)
  if has_texts or not has_ids:
    return [text(x, f"inputs[{number}]") for number, x in enumerate(examples)]
  return [token_ids(x, n, vocab_size, pads) for n, x in enumerate(examples)]


def check_listed(values: Any, name: str) -> None:
  """Raises a ValueError unless `values` can be read as a list of inputs.

  Args:
    values: the inputs.
    name: the argument's name, for messages.
  """
  fix = ""
  if isinstance(values, str | bytes | bytearray):
    shown = f"a single {type(values).__name__}"
    fix = " Wrap the text in [...]."
  elif isinstance(values, Mapping | set | frozenset):
    shown = f"a {type(values).__name__} of {_shown(list(values))}"
    is_mapping = isinstance(values, Mapping)
    fix = f" Give {f'{name}[key] of one key' if is_mapping else 'a list'}."
  elif isinstance(values, Iterable) and getattr(values, "ndim", 1):
    return
  else:
    shown = repr(values)
  raise ValueError(f"{name} must be a list of texts, got {shown}.{fix}")


def token_ids(
  ids: Any, number: int, vocab_size: int, pads: Collection[int]
) -> list[int]:
  """Returns an input of token ids as a list without the padding at the end.

  Args:
    ids: the input.
    number: the input's number, for messages.
    vocab_size: the target's vocabulary size.
    pads: the ids of padding.

  Raises:
    ValueError: if an id is not a whole number from 0 to `vocab_size` - 1, padding
      comes first, or the input has a mask.
  """
  _refuse_mask(ids, f"inputs[{number}]")
  ids = np.asarray(ids).tolist() if _is_array(ids) else ids
  is_list = isinstance(ids, Sequence)
  if not is_list or not all(is_whole(token, 0) and token < vocab_size for token in ids):
    raise ValueError(
      f"inputs[{number}] must be a list of token ids from 0 to {vocab_size - 1}, got "
      f"{_shown(ids)}. Give token ids for every input, or a text for every input."
    )
  tokens = [int(token) for token in ids]
  while tokens and tokens[-1] in pads:
    tokens.pop()
  if tokens and tokens[0] in pads:
    raise ValueError(
      f"inputs[{number}] must have padding at the end alone, got {_shown(tokens)}, "
      f"which begins with {tokens[0]}. Pad on the right, or leave the padding out."
    )
  return tokens


def _refuse_mask(values: Any, name: str) -> None:
  if isinstance(values, np.ma.MaskedArray):
    raise ValueError(
      f"{name} must be an array without a mask, got a MaskedArray. Give "
      f"{name}.filled(0) if the masked ids are padding at the end."
    )


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


def check_models(target: Any, draft: Any) -> None:
  """Raises a ValueError if target and draft have other types than `generate` takes."""
  models = {"target": target}
  if isinstance(draft, Mapping):
    models |= {f"draft[{name!r}]": model for name, model in draft.items()}
  # A drafter's name stands for the drafter, even if a file has the name.
  elif not isinstance(draft, str) or (draft not in NAMED and os.path.exists(draft)):
    models |= {} if draft is None else {"draft": draft}
  for name, model in models.items():
    if isinstance(model, Model):
      continue
    expected = "a Model, a drafter's name or None" if name == "draft" else "a Model"
    shown, fix = type(model).__name__, "Load a checkpoint with `load_model`."
    if isinstance(model, str | os.PathLike):
      shown = f"the path {os.fspath(model)!r}"
      argument = name.partition("[")[0]
      fix = f"Load the checkpoint first: {argument}=load_model({os.fspath(model)!r})."
    raise ValueError(f"{name} must be {expected}, got {shown}. {fix}")


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
  if value is None:
    raise ValueError(
      f"{name} must be given, because the target's folder has none (Hugging Face "
      "folders have one). Give the path of the SentencePiece model of target and draft."
    )
  if not isinstance(value, str | os.PathLike) or not os.path.exists(value):
    raise ValueError(
      f"{name}={_shown(value)} is not a file, or a folder with a vocabulary. Expected "
      "the SentencePiece model of target and draft, on a local disk. Nothing is "
      "downloaded."
    )
  return os.fspath(value)


def _is_array(value: Any) -> bool:
  """Returns whether a value is an array: NumPy's, JAX's or another library's."""
  return hasattr(value, "__array__")


def _shown(value: Any) -> str:
  """Returns a value's repr for a message, cut if long; a path is shown as a string."""
  if isinstance(value, os.PathLike):
    return repr(os.fspath(value))
  shown = repr(value)
  return shown if len(shown) <= 80 else f"{shown[:77]}..."
