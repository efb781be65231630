"""The pair in the package: a target, a draft, a vocabulary and a test set.

`make demo-train` trained both networks, which are stored in bfloat16. card.json records
the data, the training and the quality.
"""

import json
import pathlib
from typing import Any

FOLDER = pathlib.Path(__file__).with_name("pair")
STEPS = 8000  # training steps of each network


def checkpoint(name: str) -> str:
  """Returns the path of a checkpoint, 'target' or 'draft'."""
  return str(FOLDER / name / f"checkpoint_{STEPS}")


def target() -> str:
  """Returns the path of the target's checkpoint."""
  return checkpoint("target")


def draft() -> str:
  """Returns the path of the draft's checkpoint."""
  return checkpoint("draft")


def vocabulary() -> str:
  """Returns the path of the SentencePiece model."""
  return str(FOLDER / "vocabulary.model")


def alpha(
  target: str | None, draft: str | None, drafter: str | Any = "draft_model"
) -> float | None:
  """Returns the acceptance rate to expect; None for another pair or drafter.

  The rate is the alpha with which drafts of the card's gamma give the card's tokens per
  target call: 1 + alpha + ... + alpha^gamma (Leviathan et al., equation 1). This alpha
  is below the card's own, because outputs of some twenty tokens end within a draft.

  Args:
    target: the path of the target's checkpoint.
    draft: the path of the draft's checkpoint.
    drafter: the value of DRAFTER.
  """
  is_embedded = (target, draft) == (checkpoint("target"), checkpoint("draft"))
  if not is_embedded or drafter != "draft_model":
    return None
  numbers = card()
  alphas = [thousandth / 1000 for thousandth in range(1000)]

  def error(alpha: float) -> float:
    tokens = sum(alpha**i for i in range(numbers["gamma"] + 1))
    return abs(tokens - numbers["tokens_per_target_call"])

  return min(alphas, key=error)


def translations() -> list[tuple[str, str]]:
  """Returns the English sentences of the test set with their German translations."""
  texts = [(FOLDER / f"test.{side}").read_text("utf-8") for side in ("en", "de")]
  return list(zip(*map(str.splitlines, texts), strict=True))


def card() -> dict[str, Any]:
  """Returns the model card."""
  return json.loads((FOLDER / "card.json").read_text("utf-8"))
