"""What to say of a path that is not there: the demo makes it, or a hub has it."""

import os
import re
from collections.abc import Mapping

from etils import epath

DIRECTORY = os.path.join("runs", "demo")
COMMANDS = {"ende": "make demo", "cnndm": "make demo-all", "lm": "make demo-lm"}
# Parts that are made where they are asked for.
_MORE = ("draft_tiny", "heads", "ngrams")
# Names of models on a hub, OWNER/MODEL or T5's old ones without an owner. Neither has a
# file's extension, and no checkpoint's name is one.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|[\w.-]*[tT]5[\w.-]*")
_HUB_ADDRESS = re.compile(r"(https?|hf)://")
_LOCAL_NAME = re.compile(r"checkpoint_\d+$|\.[A-Za-z]\w*$")


def how_to_make(path: str) -> str:
  """Returns a sentence for a path that is not there, '' where there is nothing to say.

  Args:
    path: as configs/pairs/demo_*.gin give it, from the repository's root, or as a hub
      names a model.
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
  return _about_hub(os.fspath(path))


def _about_hub(path: str) -> str:
  if not is_address(path):
    is_name = _HUB_NAME.fullmatch(path) and not _LOCAL_NAME.search(path)
    if not is_name or os.path.exists(path.split("/")[0]):
      return ""
  return (
    " This looks like the name of a model on a hub. Nothing is downloaded here: "
    "download the model yourself and give the path of its local folder."
  )


def is_address(path: str) -> bool:
  """Returns whether a path is an address on the web, which is never read."""
  return bool(_HUB_ADDRESS.match(path))


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
