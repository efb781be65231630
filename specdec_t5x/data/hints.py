"""Hints for missing paths: the path may be the name of a model on a hub."""

import os
import re

# Names of models on a hub: OWNER/MODEL, or T5's old names without an owner. Names with
# a file's extension, and names of checkpoints (_LOCAL_NAME), are not names on a hub.
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*|[\w.-]*[tT]5[\w.-]*")
_HUB_ADDRESS = re.compile(r"(https?|hf)://")
_LOCAL_NAME = re.compile(r"checkpoint_\d+$|\.[A-Za-z]\w*$")


def about_hub(path: str) -> str:
  """Returns a hint if a missing path looks like a model on a hub, else ''."""
  path = os.fspath(path)
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
