"""Where the demo puts what it makes, and what to say where that is missing."""

import os
from collections.abc import Mapping

from etils import epath

DIRECTORY = os.path.join("runs", "demo")
COMMANDS = {"ende": "make demo", "cnndm": "make demo-all", "lm": "make demo-lm"}
# Parts that are made where they are asked for.
_MORE = ("draft_tiny", "heads", "ngrams")


def how_to_make(path: str) -> str:
  """Returns a sentence for a missing file of a demo pair, '' for any other path.

  Args:
    path: as configs/pairs/demo_*.gin give it, from the repository's root.
  """
  for pair, command in COMMANDS.items():
    folder, given = os.path.join(DIRECTORY, pair) + os.sep, os.path.normpath(path)
    if given.startswith(folder):
      command = "make demo-train" if pair == "ende" else command
      if given.removeprefix(folder).split(os.sep)[0] in _MORE:
        command = f"python -m specdec_t5x.demo --pairs {pair} --more"
      return (
        f" It is a part of the demo pair, which `{command}` makes; for models of your "
        "own set TARGET_CHECKPOINT_PATH, DRAFT_CHECKPOINT_PATH and VOCABULARY_PATH."
      )
  return ""


def check_exist(paths: Mapping[str, str]) -> None:
  """Raises a ValueError where a flag names a file that is not there.

  Args:
    paths: flag -> path, by default a demo pair's.
  """
  for flag, path in paths.items():
    if not epath.Path(path).exists():
      raise ValueError(
        f"--{flag}: {path!r} does not exist. Name a file of your own, or leave "
        "the flag out: the default is the pair that comes with the package."
      )
