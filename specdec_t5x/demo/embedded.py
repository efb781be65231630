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
  """Returns the acceptance rate on the card; None for another pair or drafter.

  Args:
    target: the path of the target's checkpoint.
    draft: the path of the draft's checkpoint.
    drafter: the value of DRAFTER.
  """
  is_embedded = (target, draft) == (checkpoint("target"), checkpoint("draft"))
  if not is_embedded or drafter != "draft_model":
    return None
  return card()["alpha"]["T=0"]["value"]


def translations() -> list[tuple[str, str]]:
  """Returns the English sentences of the test set with their German translations."""
  texts = [(FOLDER / f"test.{side}").read_text("utf-8") for side in ("en", "de")]
  return list(zip(*map(str.splitlines, texts), strict=True))


def card() -> dict[str, Any]:
  """Returns the model card."""
  return json.loads((FOLDER / "card.json").read_text("utf-8"))
