"""Hints for missing paths: a demo command creates the path, or a hub has the model."""

import os
import re

DIRECTORY = os.path.join("runs", "demo")
COMMANDS = {"ende": "make demo", "cnndm": "make demo-all", "lm": "make demo-lm"}
# Parts of a demo pair that the option --more creates.
_MORE = ("draft_tiny", "heads", "ngrams")
# Names of models on a hub: OWNER/MODEL, or T5's old names without an owner. Names with
# a file's extension, and names of checkpoints (_LOCAL_NAME), are not names on a hub.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|[\w.-]*[tT]5[\w.-]*")
_HUB_ADDRESS = re.compile(r"(https?|hf)://")
_LOCAL_NAME = re.compile(r"checkpoint_\d+$|\.[A-Za-z]\w*$")


def how_to_make(path: str) -> str:
  """Returns a hint for a missing path, or '' if there is no hint.

  Args:
    path: a path in configs/pairs/demo_*.gin, relative to the repository's root, or the
      name of a model on a hub.
  """
  normal_path = os.path.normpath(path)
  for pair, command in COMMANDS.items():
    folder = os.path.join(DIRECTORY, pair) + os.sep
    if normal_path.startswith(folder):
      command = "make demo-train" if pair == "ende" else command
      if normal_path.removeprefix(folder).split(os.sep)[0] in _MORE:
        command = f"python -m specdec_t5x.demo --pairs {pair} --more"
      return (
        f" The file belongs to the demo pair: run `{command}`. For your own models set "
        "TARGET_CHECKPOINT_PATH, DRAFT_CHECKPOINT_PATH and VOCABULARY_PATH."
      )
  return _about_hub(os.fspath(path))


def _about_hub(path: str) -> str:
  if not is_address(path):
    is_name = _HUB_NAME.fullmatch(path) and not _LOCAL_NAME.search(path)
    if not is_name or os.path.exists(path.split("/")[0]):
      return ""
  return (
    " This looks like the name of a model on a hub. Nothing is downloaded here: "
    "download the model yourself and give the path of the local folder."
  )


def is_address(path: str) -> bool:
  """Returns whether a path is a web address, which this package never reads."""
  return bool(_HUB_ADDRESS.match(path))
