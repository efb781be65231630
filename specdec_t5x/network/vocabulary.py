"""Whether target and draft have the same tokens."""

from typing import Any

# Padding rows by which a draft's vocabulary may differ from the target's.
_MOST_PADDING = 1024


def check_same_vocabulary(target: Any, draft: Any, name: str = "draft") -> None:
  """Raises a ValueError where a network's tokens are not the target's.

  Heads have no tokens of their own, but for a bias. The same tokens may have different
  numbers of padding rows behind them.
  """
  size = target.config.vocab_size
  sizes = size, vocab_size_of(draft, size)
  most = min(_MOST_PADDING, max(sizes) // 16)
  if abs(sizes[0] - sizes[1]) > most:
    raise ValueError(
      f"Target and {name} must share a vocabulary: the target's vocab_size is "
      f"{sizes[0]}, the {name}'s {sizes[1]}. Use one trained with the target's "
      f"vocabulary (padding rows may differ by up to {most}), or name a draft model's: "
      "DRAFT_TOKENIZER in configs/contrib/other_vocabulary.gin, draft_tokenizer in "
      "Python."
    )


def vocab_size_of(draft: Any, vocab_size: int) -> int:
  """Returns the number of tokens that a draft has logits of.

  Args:
    draft: a network.
    vocab_size: the target's, which heads without a bias have.
  """
  return getattr(draft.config, "vocab_size", 0) or vocab_size
