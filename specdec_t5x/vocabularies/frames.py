"""The tokens around each input, for all kinds of vocabularies."""

from typing import Any

from specdec_t5x.vocabularies.base import Vocabulary

Frame = tuple[tuple[int, ...], tuple[int, ...]]


def frame_of(vocabulary: Any) -> Frame:
  """Returns the tokens in front of an input, and the tokens behind an input.

  seqio's vocabularies have EOS behind inputs.
  """
  if isinstance(vocabulary, Vocabulary):
    return vocabulary.prefix, vocabulary.suffix
  return (), (vocabulary.eos_id,)


def end_ids_of(vocabulary: Any) -> tuple[int, ...]:
  """Returns the tokens that end an output.

  Raises:
    ValueError: if the vocabulary has no end of sequence.
  """
  if isinstance(vocabulary, Vocabulary):
    ids = vocabulary.end_ids
  else:
    ids = () if vocabulary.eos_id is None else (vocabulary.eos_id,)
  if not ids or min(ids) < 0:
    raise ValueError(
      f"No end token is known: {vocabulary!r} has no end of sequence. Set "
      "eos_token_id in the model folder's generation_config.json, or use a vocabulary "
      "with an end of sequence."
    )
  return ids


def framed(vocabulary: Any, tokens: list[int]) -> list[int]:
  """Returns an input's tokens between the vocabulary's prefix and suffix."""
  prefix, suffix = frame_of(vocabulary)
  return [*prefix, *tokens, *suffix]
