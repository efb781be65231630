"""The pair in the package: a target, a draft, a vocabulary and a test set.

The networks are stored in bfloat16. card.json records the data, the training and the
quality. In a clone, `make demo-train` trains the pair again.
"""

import json
import pathlib
from typing import Any

FOLDER = pathlib.Path(__file__).with_name("pair")
STEPS = 8000  # training steps of each network
PREFIX = "translate English to German: "


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


def batch_size(target: str | None) -> int:
  """Returns the rows to decode at once: 1 for this target, as the paper measures.

  Args:
    target: the path of the target's checkpoint; another target decodes 16 rows.
  """
  return 1 if target == checkpoint("target") else 16


def files() -> dict[str, tuple[str, str]]:
  """Returns the paths of the test set, English and German, by split."""
  return {"test": (str(FOLDER / "test.en"), str(FOLDER / "test.de"))}


def examples(count: int | None = None) -> tuple[list[str], list[str]]:
  """Returns the test set's first inputs, with the prefix, and their translations.

  Args:
    count: the number of examples; None is all 500.
  """
  english, german = (
    pathlib.Path(path).read_text("utf-8").splitlines()[:count]
    for path in files()["test"]
  )
  return [PREFIX + text for text in english], german


def card() -> dict[str, Any]:
  """Returns the model card."""
  return json.loads((FOLDER / "card.json").read_text("utf-8"))
