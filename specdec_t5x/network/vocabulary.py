"""Checks that target and draft have the same tokens."""

from typing import Any

# Padding rows by which a draft's vocabulary may differ from the target's.
_MOST_PADDING = 1024


def check_same_vocabulary(target: Any, draft: Any, name: str = "draft") -> None:
  """Raises a ValueError if a draft's tokens are not the target's.

  Heads have a `vocab_size` only with a bias or hot tokens. Equal vocabularies may have
  different numbers of padding rows.
  """
  target_size = target.config.vocab_size
  draft_size = vocab_size_of(draft, target_size)
  most = min(_MOST_PADDING, max(target_size, draft_size) // 16)
  if abs(target_size - draft_size) > most:
    raise ValueError(
      f"Target and {name} must share a vocabulary, but the target's vocab_size is "
      f"{target_size} and the {name}'s is {draft_size}. Use a {name} with the target's "
      f"vocabulary; padding rows may differ by up to {most}."
    )


def vocab_size_of(draft: Any, vocab_size: int) -> int:
  """Returns the number of tokens in a draft's logits.

  Args:
    draft: a network.
    vocab_size: vocabulary size of the target, shared by heads without a `vocab_size`.
  """
  return getattr(draft.config, "vocab_size", 0) or vocab_size
